// Package role assembles processes: it turns the options of a subcommand into a running
// process.
//
// Package main in cmd/ferula parses flags into options. A role builds the child loggers, registries,
// storages, engines and servers that it needs and runs them until its context is
// canceled. It then stops them in the order of their dependencies: servers before
// engines, engines before storages. The package contains no flag parsing, no HTTP
// endpoint of an API and no encoding.
package app

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/app/shipping"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/grpcserver"
	"github.com/ferula-io/ferula/internal/process/httpserver"
	"github.com/ferula-io/ferula/internal/process/reloader"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/process/tracing"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storeclient"
	"github.com/ferula-io/ferula/internal/version"
)

// apiVersion is the Prometheus version whose HTTP API is implemented. Grafana reads it
// from status/buildinfo to decide which endpoints and parameters it may use.
const apiVersion = "3.15.0"

// buildInfo returns the build information that the Go toolchain recorded.
func buildInfo() httpapi.BuildInfo {
	build := version.Current()
	return httpapi.BuildInfo{
		Version:   apiVersion,
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
	reg.Own.NewGaugeVec("prometheus_build_info", "Always 1; the labels identify the Prometheus version whose API is implemented, and this build.",
		"branch", "goarch", "goos", "goversion", "revision", "tags", "version").
		With(build.Branch, runtime.GOARCH, runtime.GOOS, build.GoVersion, cmp.Or(build.Revision, "unknown"),
			cmp.Or(version.Current().Tags, "unknown"), build.Version).Set(1)
}

// exposeReady exposes the readiness under the name that it has in Prometheus.
func exposeReady(reg *telemetry.Registry, readiness *process.Readiness) {
	const name = "prometheus_ready"
	reg.Own.Describe(name, "1 while the server is ready: the write-ahead log is replayed and it is not stopping.", "")
	reg.Own.NewGauge(name, func() float64 {
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
	WebOptions    = httpserver.Options
	GRPCOptions   = grpcserver.Options
	ReloadOptions = reloader.Options
	// ShippingOptions configure the upload of blocks to an object store.
	ShippingOptions = shipping.Options
	// ProfileCacheOptions configure the caches for profile blocks in the bucket.
	ProfileCacheOptions = shipping.ProfileCache
	// StoreClientOptions configure the gRPC connections to stores.
	StoreClientOptions = storeclient.Options
)

// newGRPCServer creates the gRPC server of a role, with the codecs of the StoreAPI; nil
// without a listen address. traced may be nil.
func newGRPCServer(opts GRPCOptions, traced *tracing.Tracing, logger *slog.Logger, reg *telemetry.Registry,
	register func(grpc.ServiceRegistrar)) (*grpcserver.Server, error) {
	storeapi.RegisterSnappy()
	opts.TLSWatch = reg.TLS
	return grpcserver.New(opts, append(storeapi.GRPCServerOptions(), traced.ServerOptions()...), logger, reg.Own, register)
}

// closingListener returns a component that closes the listener, for a process that did not run.
func closingListener(listener net.Listener) process.Component {
	return process.Component{Name: "listener", Close: func() error {
		_ = listener.Close() // already closed if the server ran
		return nil
	}}
}

// webServer returns the HTTP server of a process.
func webServer(opts WebOptions, listener net.Listener, handler http.Handler, logger *slog.Logger,
	reg *telemetry.Registry) process.Server {
	reg.TLS.Log = logger
	if certs := opts.Security(); certs.CertFile != "" {
		_ = reg.TLS.Add(certs.CertFile, certs.KeyFile) // Listen has checked it; the metrics show an error
	}
	server := opts.Server(handler, logger)
	return process.Server{
		Name:  "web server",
		Serve: func() error { return opts.Serve(listener, server, logger) },
		Drain: func() error { return opts.Drain(server) },
	}
}

// grpcServer returns the gRPC server of a process. If server is nil, its functions do
// nothing.
func grpcServer(server *grpcserver.Server) process.Server {
	return process.Server{Name: "gRPC server", Serve: server.Serve, Stopping: server.Stopping, Drain: server.Drain}
}
