package app

import (
	"context"
	"fmt"
	"net/url"

	"github.com/ferula-io/ferula/internal/compare"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/thanos/storeclient"
)

// The values of CompareOptions.Wire.
const (
	WireQuery             = "query"               // the HTTP API
	WireRemoteRead        = "remote-read"         // streamed chunks
	WireRemoteReadSamples = "remote-read-samples" // samples
	WireStoreAPI          = "storeapi"
)

// CompareOptions are the options of `ferula compare`.
type CompareOptions struct {
	Left, Right CompareSide
	Wire        string
	StoreClient StoreClientOptions
	Compare     compare.Options // Left and Right are set by Compare
}

// CompareSide names one server.
type CompareSide struct {
	Address        string // URL; host:port of a StoreAPI
	HTTPConfigFile string // Prometheus' HTTP client configuration file; "": none
}

// Compare runs queries on two servers until all responses are compared or ctx is canceled.
func Compare(ctx context.Context, o CompareOptions) (*compare.Report, error) {
	left, closeLeft, err := o.side("left", o.Left)
	if err != nil {
		return nil, err
	}
	defer closeLeft()
	right, closeRight, err := o.side("right", o.Right)
	if err != nil {
		return nil, err
	}
	defer closeRight()
	o.Compare.Left, o.Compare.Right = left, right
	return compare.Run(ctx, o.Compare)
}

// side opens one side. The returned function closes it.
func (o CompareOptions) side(flag string, s CompareSide) (compare.Side, func(), error) {
	if o.Wire == WireStoreAPI {
		store, err := storeclient.Open(s.Address, o.StoreClient, o.Compare.Timeout)
		if err != nil {
			return compare.Side{}, nil, fmt.Errorf("--%s: %w", flag, err)
		}
		return compare.Side{Raw: store, Name: s.Address}, func() { _ = store.Close() }, nil
	}
	u, err := server.HTTPURL(s.Address)
	if err != nil {
		return compare.Side{}, nil, fmt.Errorf("--%s: %w", flag, err)
	}
	client, err := httpClient(s.HTTPConfigFile, flag+".http-config")
	if err != nil {
		return compare.Side{}, nil, err
	}
	side := compare.Side{URL: u, HTTP: client, Name: u.Redacted()}
	if o.Wire != WireQuery {
		side.Raw = remoteread.NewClient(remoteread.ClientOptions{URL: (&url.URL{Scheme: u.Scheme, User: u.User,
			Host: u.Host, Path: u.JoinPath(readPath).Path}).String(), HTTP: client, StallTimeout: o.Compare.Timeout, Tries: 1,
			SamplesOnly: o.Wire == WireRemoteReadSamples})
	}
	return side, client.CloseIdleConnections, nil
}
