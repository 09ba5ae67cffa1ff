package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// cluster holds the processes: the querier reads from serve over StoreAPI, and the frontend forwards to the querier.
type cluster struct {
	serve, querier, frontend *proc.Server
}

func start(ctx context.Context, program peer.Program, dir string) (c *cluster, err error) {
	c = &cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	data, config := filepath.Join(dir, "data"), filepath.Join(dir, "prometheus.yml")
	grpc, err := proc.FreeAddress()
	other, err2 := proc.FreeAddress()
	if err := errors.Join(err, err2, os.RemoveAll(dir), os.MkdirAll(data, 0o755),
		os.WriteFile(config, []byte("global: {external_labels: {replica: a}}\n"), 0o644)); err != nil {
		return c, err
	}
	spec := func(name string, args ...string) proc.Spec {
		return proc.Spec{
			Name: "ferula " + name, Path: program.Path, Ready: "/-/ready", Log: filepath.Join(dir, name+".log"),
			Args: func(addr string) []string {
				flag := "--http-address="
				if name == "serve" {
					flag = "--web.listen-address="
				}
				return append([]string{name, flag + addr}, args...)
			},
		}
	}
	if c.serve, err = proc.Start(ctx, spec("serve", "--config.file="+config, "--storage.tsdb.path="+data, "--grpc-address="+grpc,
		"--profiles.limit.rate=1GB", "--profiles.limit.burst=1GB")); err != nil {
		return c, err
	}
	if c.querier, err = proc.Start(ctx, spec("query", "--endpoint="+grpc, "--grpc-address="+other, "--query.replica-label=replica")); err != nil {
		return c, err
	}
	c.frontend, err = proc.Start(ctx, spec("query-frontend", "--query-frontend.downstream-url="+c.querier.URL(), "--no-query-range.align-range-with-step", "--query-range.response-cache-max-freshness=5m", // samples are up to two intervals late
		"--query-range.response-cache-config={type: IN-MEMORY, config: {max_size: 256MB}}"))
	return c, err
}

func (c *cluster) stop() error {
	var errs []error
	for _, s := range c.servers() {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// servers returns the processes that run, from the client to the data.
func (c *cluster) servers() (running []*proc.Server) {
	for _, s := range []*proc.Server{c.frontend, c.querier, c.serve} {
		if s != nil {
			running = append(running, s)
		}
	}
	return running
}
