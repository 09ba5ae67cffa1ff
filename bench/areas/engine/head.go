package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// recentSpec is pushed to both sides by remote write and stays in their heads: it is less than 3 h.
var recentSpec = blocks.Spec{Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: 75 * 60_000 / stepMS, StepMS: stepMS, StartMS: startMS, Seed: 4}

var lastHour = query{"engine/head-1h", "sum by (rate), the last hour, in the head", "sum by (namespace) (rate(bench_metric[5m]))", recentSpec.EndMS() - hourMS, stepMS, hourMS / stepMS, 2}

// head measures a query over samples that are in the heads of both sides.
func (b *bench) head(ctx context.Context) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		data, config := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "prometheus.yml")
		if err := errors.Join(os.RemoveAll(data), os.MkdirAll(data, 0o755), os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644)); err != nil {
			return err
		}
		if s.server, err = proc.Start(ctx, s.program.Serve(peer.TSDB{
			Dir: data, Config: config, Log: filepath.Join(s.dir, "log"), More: []string{"--web.enable-remote-write-receiver"},
		})); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		if err := push.Samples(ctx, s.server.URL(), recentSpec); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.env.Logf("%s: %d samples pushed", s.name, recentSpec.Series*recentSpec.Samples)
	}
	return b.measureRunning(ctx, recentSpec, []query{lastHour})
}

const fallbackShare = "evaluations of Prometheus' scripts that its own engine had to do, share"

// fallback runs Prometheus' test scripts through the engine of columns, and records the share of evaluations that this
// engine left to Prometheus' engine.
func (b *bench) fallback(ctx context.Context) error {
	test := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "PrometheusScripts/TSDB", "./test/promql")
	test.Dir = b.env.Programs.Root
	test.Env = append(os.Environ(), "GOWORK=") // the bench's own module is built without a workspace
	out, err := test.CombinedOutput()
	if err != nil {
		return fmt.Errorf("Prometheus' scripts: %w: %.1000s", err, out) //nolint:staticcheck // a name
	}
	share, err := parseShare(out)
	if err == nil {
		b.out.Recorder.Add(1, ferula, fallbackShare, area.Count, share)
	}
	return err
}

var ownShare = regexp.MustCompile(`([0-9.]+) % of [0-9]+ evaluations without Prometheus' engine`)

var errNoShare = errors.New("the test of Prometheus' scripts reports no share")

// parseShare returns the share of the evaluations that Prometheus' engine did, from 0 to 1.
func parseShare(report []byte) (float64, error) {
	m := ownShare.FindSubmatch(report)
	if m == nil {
		return 0, errNoShare
	}
	percent, err := strconv.ParseFloat(string(m[1]), 64)
	return 1 - percent/100, err
}
