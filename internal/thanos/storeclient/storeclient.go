// Package storeclient connects to StoreAPIs over gRPC, for a fan-out over many stores or
// as the source of an export.
package storeclient

import (
	"cmp"
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Options configure the gRPC connections to stores.
type Options struct {
	TLS             bool
	TLSSkipVerify   bool
	TLSCert, TLSKey string // files; both or none
	TLSCA           string // file; "": the system's certificate pool
	TLSServerName   string
	TLSMinVersion   string           // 1.0 to 1.3; "": 1.3
	TLSWatch        *server.TLSWatch // of the files above, not of those in the configuration of an endpoint; may be nil
	Client          storeapi.ClientOptions
	Dial            []grpc.DialOption // interceptors of calls
	LookupInterval  time.Duration     // of resolving the names of endpoint groups; 0: 30 s
}

// Dialer returns the function that creates the client of an endpoint. A client connects with its
// first call. The client of an endpoint group balances calls over all addresses of the group's
// name. The configuration of an endpoint overrides the options.
func (o Options) Dialer() (func(a fanout.Address) (fanout.Client, error), error) {
	if _, err := o.credentials(); err != nil {
		return nil, err
	}
	return func(a fanout.Address) (fanout.Client, error) {
		return o.with(a.Client).dial(a)
	}, nil
}

// with returns o with the settings of an endpoint. A setting that the endpoint does not have stays as in o.
func (o Options) with(c fanout.ClientConfig) Options {
	for _, s := range []struct {
		to  *bool
		own string
	}{{&o.TLS, c.TLS}, {&o.TLSSkipVerify, c.SkipVerify}} {
		if s.own != "" {
			*s.to = s.own == "true"
		}
	}
	if c.Cert+c.Key+c.CA != "" {
		o.TLSWatch = nil // the endpoint may be removed, and its metrics would stay
	}
	o.TLSCert, o.TLSKey, o.TLSCA = cmp.Or(c.Cert, o.TLSCert), cmp.Or(c.Key, o.TLSKey), cmp.Or(c.CA, o.TLSCA)
	o.TLSServerName, o.TLSMinVersion = cmp.Or(c.ServerName, o.TLSServerName), cmp.Or(c.MinVersion, o.TLSMinVersion)
	switch c.Compression {
	case "none":
		o.Client.Compression = ""
	case "snappy":
		o.Client.Compression = storeapi.Snappy
	}
	return o
}

func (o Options) credentials() (credentials.TransportCredentials, error) {
	if !o.TLS {
		return insecure.NewCredentials(), nil
	}
	config, err := server.ClientTLS{Cert: o.TLSCert, Key: o.TLSKey, CA: o.TLSCA, ServerName: o.TLSServerName,
		MinVersion: o.TLSMinVersion, SkipVerify: o.TLSSkipVerify, Watch: o.TLSWatch}.Config()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}

// roundRobin is the default service configuration of endpoint groups for gRPC.
const roundRobin = `{"loadBalancingConfig":[{"round_robin":{}}]}`

func (o Options) dial(a fanout.Address) (fanout.Client, error) {
	creds, err := o.credentials()
	if err != nil {
		return nil, err
	}
	if o.Client.Compression == storeapi.Snappy {
		storeapi.RegisterSnappy()
	}
	wait := backoff.DefaultConfig
	wait.MaxDelay = 5 * time.Second // gRPC's default of 2 minutes would delay the use of a restarted store
	options := append(storeapi.GRPCDialOptions(),
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: wait, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDisableServiceConfig(),
	)
	options = append(options, o.Dial...)
	target, service := "passthrough:///"+a.Name, a.Client.ServiceConfig
	if a.Group {
		target, service = "dns:///"+a.Name, cmp.Or(service, roundRobin)
		if strings.Contains(a.Name, "+") {
			target = lookupScheme + ":///" + a.Name
			interval := cmp.Or(o.LookupInterval, 30*time.Second)
			options = append(options, grpc.WithResolvers(lookupBuilder{net.DefaultResolver, interval}))
		}
	}
	if service != "" {
		options = append(options, grpc.WithDefaultServiceConfig(service))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, err
	}
	if server.IsLoopback(a.Name) {
		o.Client.NoDeltas = true // differences of labels save bytes, which are cheap on loopback, and cost time
	}
	return client{storeapi.NewClient(conn, o.Client), conn}, nil
}

// client is a StoreAPI client that owns its connection.
type client struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

// Series implements fanout.Client.
func (c client) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return c.Client.Series(ctx, r)
}

// Close implements fanout.Client.
func (c client) Close() error { return c.conn.Close() }
