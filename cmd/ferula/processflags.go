package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// processFlags are the flags of every command that replaces a command of Thanos.
type processFlags struct {
	HTTPAddress     string   `name:"http-address" default:"127.0.0.1:10902"`
	HTTPGracePeriod duration `name:"http-grace-period" default:"2m"`
	HTTPConfig      string   `name:"http.config" placeholder:"FILE"`

	TracingConfig     secret `name:"tracing.config" placeholder:"YAML" xor:"tracing"`
	TracingConfigFile string `name:"tracing.config-file" placeholder:"FILE" xor:"tracing"`

	AutoMemory  bool    `name:"enable-auto-gomemlimit" default:"true" negatable:""`
	MemoryRatio float64 `name:"auto-gomemlimit.ratio" default:"0.9"`

	Log logFlags `embed:""`

	// set by runRole
	logger      *slog.Logger
	commandLine []string          // without secrets
	values      map[string]string // of all flags
}

func (f processFlags) memory() memoryFlags {
	return memoryFlags{Auto: f.AutoMemory, Ratio: f.MemoryRatio}
}

func (f processFlags) Validate() error {
	return errors.Join(checkListen("http-address", f.HTTPAddress), f.memory().Validate())
}

// ignoreHangups logs each SIGHUP until stop is called. Otherwise SIGHUP would end the
// process. The peers do not end at a SIGHUP either.
func ignoreHangups(logger *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			logger.Info("Ignoring SIGHUP: changed files are reloaded without it")
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
	}
}

// web returns the options of the HTTP server. Every host is accepted, unless the command has hostFlags.
func (f processFlags) web() app.WebOptions {
	return app.WebOptions{ListenAddress: f.HTTPAddress, ConfigFile: f.HTTPConfig, ConfigFlag: "http.config",
		DrainTimeout: zeroIsNone(f.HTTPGracePeriod), AllowedHosts: []string{server.AnyHost}, CommandLine: f.commandLine}
}

// runRole builds a process that does not handle SIGHUP, and sets next to its Run. options converts its flags, and build
// creates the process from the options.
func runRole[O any, R interface{ Run(context.Context) error }](ctx context.Context, k *kong.Context, next *role,
	f *processFlags, ignored ignoredFlags, options func() (O, error), build func(O) (R, error)) (err error) {
	if f.logger, _, err = f.Log.logger(); err != nil {
		return err
	}
	f.commandLine, f.values = commandLine(k, os.Args), flagValues(k)
	opts, err := options()
	if err != nil {
		return usageError(err)
	}
	ignored.warn(f.logger)
	warnOpen(f.logger, k, f.values)
	stop := ignoreHangups(f.logger)
	f.memory().apply(ctx, f.logger, 0)
	r, err := build(opts)
	if err != nil {
		stop()
		return err
	}
	*next = func(ctx context.Context) error {
		defer stop()
		return r.Run(ctx)
	}
	return nil
}

// hostFlags are the flags of every command that serves a page or accepts changes.
type hostFlags struct {
	Allowed []string `name:"web.allowed-host" sep:"none" placeholder:"NAME"`
}

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

// queryGRPCClientFlags configure the connections to stores.
type queryGRPCClientFlags struct {
	TLS         bool   `name:"grpc-client-tls-secure" negatable:""`
	SkipVerify  bool   `name:"grpc-client-tls-skip-verify" negatable:""`
	Cert        string `name:"grpc-client-tls-cert" placeholder:"FILE"`
	Key         string `name:"grpc-client-tls-key" placeholder:"FILE"`
	CA          string `name:"grpc-client-tls-ca" placeholder:"FILE"`
	ServerName  string `name:"grpc-client-server-name" placeholder:"NAME"`
	MinVersion  string `name:"grpc-client-tls-min-version" enum:"1.0,1.1,1.2,1.3" default:"1.3"`
	Compression string `name:"grpc-compression" enum:"none,snappy" default:"none"`
	Batch       int    `name:"query.series-response-batch-size" min:"1" default:"64"`
}

func (f queryGRPCClientFlags) options() app.StoreClientOptions {
	o := app.StoreClientOptions{
		TLS: f.TLS, TLSSkipVerify: f.SkipVerify, TLSCert: f.Cert, TLSKey: f.Key, TLSCA: f.CA, TLSServerName: f.ServerName,
		TLSMinVersion: f.MinVersion,
	}
	o.Client.BatchSeries = f.Batch
	if f.Compression != "none" {
		o.Client.Compression = f.Compression
	}
	return o
}

// objstoreFlags are Thanos' flags of object storage and of uploads to it.
type objstoreFlags struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore"`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore"`

	UploadCompacted bool   `name:"shipper.upload-compacted" negatable:""`
	HashFunc        string `name:"hash-func" enum:",SHA256" default:""`
	StateFile       string `name:"shipper.meta-file-name" default:"thanos.shipper.json"`
	Concurrency     int    `name:"shipper.upload-concurrency" default:"0"`
	IgnoreBlockSize bool   `name:"shipper.ignore-unequal-block-size" hidden:""`
	OutOfOrder      bool   `name:"shipper.allow-out-of-order-uploads" hidden:""`
	SkipCorrupted   bool   `name:"shipper.skip-corrupted-blocks" hidden:""`
}

func (f objstoreFlags) options() (app.ShippingOptions, error) {
	config, err := pathOrContent("objstore.config", f.Config, f.ConfigFile)
	if err != nil {
		return app.ShippingOptions{}, err
	}
	if config == "" && f.ConfigFile != "" {
		return app.ShippingOptions{}, fmt.Errorf("--objstore.config-file: %s is empty", f.ConfigFile)
	}
	return app.ShippingOptions{
		Bucket:          config,
		IgnoreBlockSize: f.IgnoreBlockSize,
		Shipper: bucket.ShipOptions{
			UploadCompacted: f.UploadCompacted, AllowOutOfOrder: f.OutOfOrder, SkipCorrupted: f.SkipCorrupted,
			Hashes: f.HashFunc != "", StateFile: f.StateFile, Concurrency: f.Concurrency,
		},
	}, nil
}
