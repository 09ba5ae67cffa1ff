package peer

import "github.com/ferula-io/ferula/bench/proc"

// The components of Thanos, and ferula's, take the same flags.

// Sidecar returns the specification of a sidecar of a Prometheus, whose StoreAPI is at an address.
func (p Program) Sidecar(log, address, prometheus, tsdb string) proc.Spec {
	return p.component(log, "sidecar", "--grpc-address="+address, "--prometheus.url="+prometheus, "--tsdb.path="+tsdb)
}

// Store returns the specification of a store gateway over a bucket in a directory, with a data directory of its own.
func (p Program) Store(log, address, bucket, data string) proc.Spec {
	return p.component(log, "store", "--grpc-address="+address, "--data-dir="+data,
		"--objstore.config={type: FILESYSTEM, config: {directory: "+bucket+"}}")
}

// Query returns the specification of a querier of StoreAPIs.
func (p Program) Query(log, address string, endpoints []string, more ...string) proc.Spec {
	args := append([]string{"--grpc-address=" + address}, more...)
	for _, endpoint := range endpoints {
		args = append(args, "--endpoint="+endpoint)
	}
	return p.component(log, "query", args...)
}

// Frontend returns the specification of a query frontend. Start and end are not aligned, so that both programs send the same
// queries to the downstream. Responses are compressed if the client accepts it.
func (p Program) Frontend(log, downstream, splitInterval string, more ...string) proc.Spec {
	return p.component(log, "query-frontend", append([]string{
		"--query-frontend.downstream-url=" + downstream, "--query-frontend.compress-responses",
		"--query-range.split-interval=" + splitInterval, "--no-query-range.align-range-with-step",
	}, more...)...)
}

func (p Program) component(log, name string, more ...string) proc.Spec {
	spec := p.spec(log, func(addr string) []string { return append([]string{name, "--http-address=" + addr}, more...) })
	spec.Name += " " + name
	return spec
}

// Own returns the specification of a program of the bench.
func (p Program) Own(log string, more ...string) proc.Spec {
	return p.spec(log, func(addr string) []string { return append([]string{"-listen=" + addr}, more...) })
}

// Serve returns the specification of Prometheus, or ferula serve, over a TSDB directory. Retention is set so that no block
// expires.
func (p Program) Serve(log, tsdb, config string, more ...string) proc.Spec {
	return p.spec(log, func(addr string) []string {
		var args []string
		if p.kind == Ferula {
			args = append(args, "serve", "--grpc-address=127.0.0.1:0")
		}
		return append(append(args, "--config.file="+config, "--storage.tsdb.path="+tsdb,
			"--storage.tsdb.retention.time="+retentionOfAges, "--web.listen-address="+addr), more...)
	})
}

// Single returns the specification of a single VictoriaMetrics over a data directory. No sample expires.
func (p Program) Single(log, data string, more ...string) proc.Spec {
	spec := p.spec(log, func(addr string) []string {
		return append([]string{"-httpListenAddr=" + addr, "-storageDataPath=" + data, "-retentionPeriod=100y"}, more...)
	})
	spec.Ready = "/health"
	return spec
}

func (p Program) spec(log string, args func(addr string) []string) proc.Spec {
	return proc.Spec{Name: p.Name, Path: p.Path, Env: RuntimeEnv(), Ready: "/-/ready", Log: log, Args: args}
}
