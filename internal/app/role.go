// Package app assembles processes: it turns the options of a subcommand into a running process.
//
// Package main in cmd/ferula parses flags into options. A process builds the child loggers, registries, storages,
// engines and servers that it needs and runs them until its context is canceled. It then stops them in the order of
// their dependencies: servers before engines, engines before storages. The package contains no flag parsing, no HTTP
// endpoint of an API and no encoding.
package app

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storeclient"
	"github.com/ferula-io/ferula/internal/version"
)

// APIVersion is the Prometheus version whose HTTP API is implemented. Grafana reads it
// from status/buildinfo to decide which endpoints and parameters it may use.
const APIVersion = "3.15.0"

// buildInfo returns the build information that the Go toolchain recorded.
func buildInfo() httpapi.BuildInfo {
	build := version.Current()
	return httpapi.BuildInfo{
		Version:   APIVersion,
		Revision:  build.Revision,
		BuildDate: build.Time,
		GoVersion: runtime.Version(),
		Program:   "ferula " + build.Version,
	}
}

// exposeBuild exposes the build under the name that dashboards of Prometheus know. A label
// with an empty value would be missing, so an unknown value is "unknown".
func exposeBuild(reg *telemetry.Registry) {
	build := buildInfo()
	reg.Own.NewGaugeVec("prometheus_build_info",
		"Always 1; the labels identify the Prometheus version whose API is implemented, and this build.",
		"branch", "goarch", "goos", "goversion", "revision", "tags", "version").
		With(build.Branch, runtime.GOARCH, runtime.GOOS, build.GoVersion, cmp.Or(build.Revision, "unknown"),
			cmp.Or(version.Current().Tags, "unknown"), build.Version).Set(1)
}

// exposeReady exposes the readiness under the name that it has in Prometheus.
func exposeReady(reg *telemetry.Registry, readiness *process.Readiness) {
	process.Gauge(reg.Own, "prometheus_ready",
		"1 while the server is ready: the write-ahead log is replayed and it is not stopping.", func() float64 {
			if readiness.IsReady() {
				return 1
			}
			return 0
		})
}

// setGCPercent applies runtime.gogc and sets the environment variable GOGC, which
// status/runtimeinfo returns. Prometheus does the same.
func setGCPercent(percent int) {
	debug.SetGCPercent(percent)
	value := "off"
	if percent >= 0 {
		value = strconv.Itoa(percent)
	}
	_ = os.Setenv("GOGC", value) // fails only for a name with = or NUL
}

// Options of the servers and clients that several roles have.
type (
	WebOptions  = server.WebOptions
	GRPCOptions = server.GRPCOptions
	// StoreClientOptions configure the gRPC connections to stores.
	StoreClientOptions = storeclient.Options
)

// base has what the processes of all commands have.
type base struct {
	web       WebOptions
	logger    *slog.Logger
	reg       *telemetry.Registry
	tls       *server.TLSWatch // of the certificates of this process
	process   *process.Process
	listeners server.Listeners
	grpc      *server.GRPC // nil: none
	started   time.Time
}

func newBase(web WebOptions, logger *slog.Logger) base {
	reg := telemetry.New()
	return base{web: web.WithDefaults(), logger: logger, reg: reg, tls: server.NewTLSWatch(reg.Own),
		process: process.New(logger), started: time.Now().UTC()}
}

// release closes what a process has opened that could not be built.
func (b *base) release(err *error) {
	if *err != nil {
		_ = b.process.Close()
	}
}

// Addr returns the (first) HTTP listen address.
func (b *base) Addr() net.Addr { return b.listeners[0].Addr() }

// GRPCAddr returns the gRPC listen address; nil without a gRPC server.
func (b *base) GRPCAddr() net.Addr { return b.grpc.Addr() }

// url returns the URL of the HTTP server.
func (b *base) url() string { return b.web.Scheme() + "://" + b.Addr().String() + "/" }

// trace creates the tracing of a service from Thanos' configuration.
func (b *base) trace(config, service string) (*telemetry.Tracing, error) {
	traced, err := telemetry.NewTracing(config, service, b.logger.With("component", "tracing"))
	if err != nil {
		return nil, hint.Invalid("tracing.config", err)
	}
	b.process.Add(process.Component{Name: "tracing", Close: traced.Close})
	return traced, nil
}

// listen opens the HTTP listeners.
func (b *base) listen() (err error) {
	if b.listeners, err = b.web.Listen(); err != nil {
		return err
	}
	b.process.Add(process.Component{Name: "listener",
		Close: func() error { _ = b.listeners.Close(); return nil }}) // already closed if the server ran
	return nil
}

// listenGRPC creates the gRPC server, with the codecs of the StoreAPI, if there is a listen address.
func (b *base) listenGRPC(opts GRPCOptions, traced *telemetry.Tracing,
	register func(grpc.ServiceRegistrar)) (err error) {
	storeapi.RegisterSnappy()
	opts.TLS.Watch, opts.Span = b.tls, traced.Served
	b.grpc, err = server.NewGRPC(opts, storeapi.GRPCServerOptions(), b.logger, b.reg.Own, register)
	return err
}

// listenStoreAPI is listenGRPC for a command of Thanos, which serves a source.
func (b *base) listenStoreAPI(opts GRPCOptions, traced *telemetry.Tracing, source storeapi.Source,
	limits storeapi.ServerOptions) error {
	if err := opts.CheckAnonymous(b.web); err != nil { // no error: Thanos' clients commonly have no certificates
		b.logger.Warn("The gRPC server accepts clients that the HTTP server rejects", "reason", err)
	}
	opts.RequestBytesMax = cmp.Or(opts.RequestBytesMax, 4<<20) // there are no pushes: messages of queries are small
	limits.Metrics = b.reg.Own
	return b.listenGRPC(opts, traced, func(to grpc.ServiceRegistrar) { storeapi.NewServer(source, limits).Register(to) })
}

// runtimeInfo returns what status/runtimeinfo says of a process whose configuration does not change.
func (b *base) runtimeInfo() (info httpapi.RuntimeInfo, err error) {
	info = httpapi.RuntimeInfo{StartTime: b.started, ReloadConfigSuccess: true, LastConfigTime: b.started}
	if info.CWD, err = os.Getwd(); err == nil {
		info.Hostname, err = os.Hostname()
	}
	return info, err
}

// newMux returns a mux with the debug endpoints and /metrics.
func (b *base) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	b.web.RegisterDebugEndpoints(mux, "", &b.process.Readiness)
	mux.Handle("GET /metrics", b.reg.Handler(b.logger))
	return mux
}

// webServer returns the HTTP server.
func (b *base) webServer(handler http.Handler) process.Server {
	b.tls.Log = b.logger
	if certs := b.web.Security(); certs.CertFile != "" {
		_ = b.tls.Add(certs.CertFile, certs.KeyFile) // Listen has checked it; the metrics show an error
	}
	server := b.web.Server(handler, b.logger)
	return process.Server{
		Name:  "web server",
		Serve: func() error { return b.web.Serve(b.listeners, server, b.logger) },
		Drain: func() error { return b.web.Drain(server) },
	}
}

// grpcServer returns the gRPC server. Without one, its functions do nothing.
func (b *base) grpcServer() process.Server {
	return process.Server{Name: "gRPC server", Serve: b.grpc.Serve, Stopping: b.grpc.Stopping, Drain: b.grpc.Drain}
}

// repeat calls work after a first pause, and then every interval until ctx is canceled. It passes an error to failed.
func repeat(ctx context.Context, first, interval time.Duration, work func(context.Context) error,
	failed func(retryIn time.Duration, err error)) error {
	timer := time.NewTimer(first)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		begun := time.Now()
		err := work(ctx)
		if failures++; err == nil || ctx.Err() != nil {
			failures = 0
		}
		pause := pauseAfter(interval, time.Since(begun), failures)
		if failures > 0 {
			failed(pause, err)
		}
		timer.Reset(pause)
	}
}

// pauseAfter returns the time until the next repetition. took is the duration of the last one, which counts towards the
// interval. failures is the number of consecutive failed ones. After the first failure the pause is 15 s. Each further
// failure doubles it, up to the interval.
func pauseAfter(interval, took time.Duration, failures int) time.Duration {
	if failures > 0 {
		return min(interval, 15*time.Second<<min(failures-1, 10))
	}
	return max(0, interval-took)
}
