package role

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// StoreClientOptions configure the gRPC connections to stores.
type StoreClientOptions struct {
	TLS             bool
	TLSSkipVerify   bool
	TLSCert, TLSKey string // files; both or none
	TLSCA           string // file; "": the system's certificate pool
	TLSServerName   string
	TLSMinVersion   string // 1.0 to 1.3; "": 1.3
	Client          storeapi.ClientOptions
}

// dialer returns the function that creates the client of an endpoint. A client
// connects with its first call. group balances calls over all addresses of a DNS name.
func (o StoreClientOptions) dialer() (func(address string, group bool) (fanout.Client, error), error) {
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
		return storeClient{storeapi.NewClient(conn, o.Client), conn}, nil
	}, nil
}

func (o StoreClientOptions) tls() (*tls.Config, error) {
	config := &tls.Config{InsecureSkipVerify: o.TLSSkipVerify, ServerName: o.TLSServerName} // set by the operator
	version := o.TLSMinVersion
	if version == "" {
		version = "1.3"
	}
	var ok bool
	if config.MinVersion, ok = tlsVersions[version]; !ok {
		return nil, fmt.Errorf("unknown TLS version %q; known are 1.0, 1.1, 1.2, 1.3", version)
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return nil, errors.New("certificate and key must both be set")
	}
	if o.TLSCert != "" {
		pair := &keyPair{certFile: o.TLSCert, keyFile: o.TLSKey}
		if _, err := pair.get(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get() }
	}
	if o.TLSCA != "" {
		var err error
		if config.RootCAs, err = readCA(o.TLSCA); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// storeClient is a StoreAPI client that owns its connection.
type storeClient struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

// Series implements fanout.Client.
func (c storeClient) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return c.Client.Series(ctx, r)
}

// Close implements fanout.Client.
func (c storeClient) Close() error { return c.conn.Close() }
