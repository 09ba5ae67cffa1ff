package main

import (
	"time"

	"github.com/ferula-io/ferula/internal/role"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// grpcFlags are those of every command that offers a StoreAPI, named as Thanos
// names them. The address is each command's own flag.
type grpcFlags struct {
	TLSCert          string   `name:"grpc-server-tls-cert" placeholder:"FILE" help:"TLS certificate for the gRPC server. Without one there is no TLS."`
	TLSKey           string   `name:"grpc-server-tls-key" placeholder:"FILE" help:"TLS key for the gRPC server."`
	TLSClientCA      string   `name:"grpc-server-tls-client-ca" placeholder:"FILE" help:"TLS CA to verify clients against. Without one clients are not verified."`
	TLSMinVersion    string   `name:"grpc-server-tls-min-version" enum:"1.0,1.1,1.2,1.3" default:"1.3" help:"Lowest TLS version of the gRPC server (${enum})."`
	TLSCiphers       []string `name:"grpc-server-tls-ciphers" sep:"none" placeholder:"NAME" help:"TLS cipher suites of the gRPC server, repeatable; those of Go by default. Not used by TLS 1.3."`
	TLSCurves        []string `name:"grpc-server-tls-curves" sep:"none" placeholder:"NAME" help:"TLS curves of the gRPC server, repeatable; those of Go by default."`
	MaxConnectionAge duration `name:"grpc-server-max-connection-age" default:"60m" help:"After which time gRPC clients are told to connect again."`
	GracePeriod      duration `name:"grpc-grace-period" default:"2m" help:"How long to wait for running gRPC calls at the end."`

	SeriesMax  int64 `name:"store.limits.request-series" default:"0" help:"The maximum series of a single Series request, which fails beyond it. 0 means no limit."`
	SamplesMax int64 `name:"store.limits.request-samples" default:"0" help:"The maximum samples of a single Series request, which fails beyond it. Each chunk is taken for 120 samples. 0 means no limit."`
}

// options are those of a server on that address.
func (f grpcFlags) options(address string) (role.GRPCOptions, storeapi.ServerOptions) {
	return role.GRPCOptions{
		ListenAddress:    address,
		TLSCert:          f.TLSCert,
		TLSKey:           f.TLSKey,
		TLSClientCA:      f.TLSClientCA,
		TLSMinVersion:    f.TLSMinVersion,
		TLSCiphers:       f.TLSCiphers,
		TLSCurves:        f.TLSCurves,
		MaxConnectionAge: time.Duration(f.MaxConnectionAge),
		GracePeriod:      time.Duration(f.GracePeriod),
	}, storeapi.ServerOptions{SeriesMax: f.SeriesMax, SamplesMax: f.SamplesMax}
}
