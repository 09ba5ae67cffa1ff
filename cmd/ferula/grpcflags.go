package main

import (
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// grpcFlags are the flags of every command that serves a StoreAPI, with Thanos' names.
// The listen address is a flag of each command.
type grpcFlags struct {
	TLSCert          string   `name:"grpc-server-tls-cert" placeholder:"FILE"`
	TLSKey           string   `name:"grpc-server-tls-key" placeholder:"FILE"`
	TLSClientCA      string   `name:"grpc-server-tls-client-ca" placeholder:"FILE"`
	TLSMinVersion    string   `name:"grpc-server-tls-min-version" enum:"1.0,1.1,1.2,1.3" default:"1.3"`
	TLSCiphers       []string `name:"grpc-server-tls-ciphers" sep:"none" placeholder:"NAME"`
	TLSCurves        []string `name:"grpc-server-tls-curves" sep:"none" placeholder:"NAME"`
	MaxConnectionAge duration `name:"grpc-server-max-connection-age" default:"60m"`
	GracePeriod      duration `name:"grpc-grace-period" default:"2m"`

	SeriesMax  int64 `name:"store.limits.request-series" default:"0"`
	SamplesMax int64 `name:"store.limits.request-samples" default:"0"`
}

// options returns the options of a gRPC server that listens on address.
func (f grpcFlags) options(address string) (app.GRPCOptions, storeapi.ServerOptions) {
	return app.GRPCOptions{
			ListenAddress: address,
			TLS: server.ServerTLS{Cert: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA, MinVersion: f.TLSMinVersion,
				Ciphers: f.TLSCiphers, Curves: f.TLSCurves},
			MaxConnectionAge: time.Duration(f.MaxConnectionAge),
			GracePeriod:      zeroIsNone(f.GracePeriod),
		}, storeapi.ServerOptions{SeriesMax: f.SeriesMax, SamplesMax: f.SamplesMax, Flags: hint.Flags{
			"SeriesMax": "--store.limits.request-series", "SamplesMax": "--store.limits.request-samples",
		}}
}
