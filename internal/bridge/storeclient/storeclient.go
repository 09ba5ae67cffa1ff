// Package storeclient connects to StoreAPIs over gRPC, for a fan-out over many stores or
// as the source of an export.
package storeclient

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ferula-io/ferula/internal/process/tlsfiles"
	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// Options configure the gRPC connections to stores.
type Options struct {
	TLS             bool
	TLSSkipVerify   bool
	TLSCert, TLSKey string // files; both or none
	TLSCA           string // file; "": the system's certificate pool
	TLSServerName   string
	TLSMinVersion   string // 1.0 to 1.3; "": 1.3
	Client          storeapi.ClientOptions
	Dial            []grpc.DialOption // interceptors of calls
}

// Dialer returns the function that creates the client of an endpoint. A client
// connects with its first call. group balances calls over all addresses of a DNS name.
func (o Options) Dialer() (func(address string, group bool) (fanout.Client, error), error) {
	creds := insecure.NewCredentials()
	if o.TLS {
		config, err := o.tls()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	if o.Client.Compression == storeapi.Snappy {
		storeapi.RegisterSnappy()
	}
	wait := backoff.DefaultConfig
	wait.MaxDelay = 5 * time.Second // a store that restarts is used again soon
	options := append(storeapi.GRPCDialOptions(),
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: wait, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDisableServiceConfig(),
	)
	options = append(options, o.Dial...)
	return func(address string, group bool) (fanout.Client, error) {
		target, all := "passthrough:///"+address, options
		if group {
			target = "dns:///" + address
			all = append(append([]grpc.DialOption{}, options...), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
		}
		conn, err := grpc.NewClient(target, all...)
		if err != nil {
			return nil, err
		}
		return client{storeapi.NewClient(conn, o.Client), conn}, nil
	}, nil
}

// tls returns the TLS configuration of the connections.
func (o Options) tls() (*tls.Config, error) {
	return tlsfiles.Client{Cert: o.TLSCert, Key: o.TLSKey, CA: o.TLSCA, ServerName: o.TLSServerName, MinVersion: o.TLSMinVersion, SkipVerify: o.TLSSkipVerify}.Config()
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
