package main

import (
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// grpcFlags are the flags of every command that serves a StoreAPI, with Thanos' names.
// The listen address is a flag of each command.
type grpcFlags struct {
	TLSCert          string   `name:"grpc-server-tls-cert" placeholder:"FILE" help:"TLS certificate for the gRPC server. Empty disables TLS."`
	TLSKey           string   `name:"grpc-server-tls-key" placeholder:"FILE" help:"TLS key for the gRPC server."`
	TLSClientCA      string   `name:"grpc-server-tls-client-ca" placeholder:"FILE" help:"TLS CA to verify clients against. Empty disables the verification of clients."`
	TLSMinVersion    string   `name:"grpc-server-tls-min-version" enum:"1.0,1.1,1.2,1.3" default:"1.3" help:"Minimum TLS version of the gRPC server (${enum})."`
	TLSCiphers       []string `name:"grpc-server-tls-ciphers" sep:"none" placeholder:"NAME" help:"TLS cipher suite of the gRPC server (repeatable). Defaults to Go's. TLS 1.3 ignores it."`
	TLSCurves        []string `name:"grpc-server-tls-curves" sep:"none" placeholder:"NAME" help:"TLS curve of the gRPC server (repeatable). Defaults to Go's."`
	MaxConnectionAge duration `name:"grpc-server-max-connection-age" default:"60m" help:"Age at which the gRPC server closes a connection gracefully, so that clients reconnect."`
	GracePeriod      duration `name:"grpc-grace-period" default:"2m" help:"Time to wait for gRPC calls in progress at shutdown."`

	SeriesMax  int64 `name:"store.limits.request-series" default:"0" help:"Maximum series of one Series request. A request that exceeds it fails. 0 means no limit."`
	SamplesMax int64 `name:"store.limits.request-samples" default:"0" help:"Maximum samples of one Series request, where a chunk counts as 120 samples. A request that exceeds it fails. 0 means no limit."`
}

// options returns the options of a gRPC server that listens on address.
func (f grpcFlags) options(address string) (app.GRPCOptions, storeapi.ServerOptions) {
	return app.GRPCOptions{
			ListenAddress:    address,
			TLSCert:          f.TLSCert,
			TLSKey:           f.TLSKey,
			TLSClientCA:      f.TLSClientCA,
			TLSMinVersion:    f.TLSMinVersion,
			TLSCiphers:       f.TLSCiphers,
			TLSCurves:        f.TLSCurves,
			MaxConnectionAge: time.Duration(f.MaxConnectionAge),
			GracePeriod:      zeroIsNone(f.GracePeriod),
		}, storeapi.ServerOptions{SeriesMax: f.SeriesMax, SamplesMax: f.SamplesMax, Flags: hint.Flags{
			"SeriesMax": "--store.limits.request-series", "SamplesMax": "--store.limits.request-samples",
		}}
}
