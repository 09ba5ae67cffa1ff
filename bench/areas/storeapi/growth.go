package storeapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

const (
	fewSeries  = 10_000
	manySeries = 1_000_000
)

func growthWhat(n int) string { return fmt.Sprintf("growth of a server: %d series", n) }

// growth measures how much the memory of a server grows while it streams few series and while it streams
// many. Each measurement starts a new process.
func (b *bench) growth(ctx context.Context, p peer.Program) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for _, n := range []int{fewSeries, manySeries} {
			g, err := b.growthOf(ctx, p, n)
			if err != nil {
				return fmt.Errorf("growth: %w", err)
			}
			b.out.Recorder.Add(round, ferula, growthWhat(n), area.Bytes, float64(g.Bytes()))
		}
	}
	return nil
}

func (b *bench) growthOf(ctx context.Context, p peer.Program, n int) (g proc.Growth, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return g, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return g, err
	}
	server, err := proc.Start(ctx, proc.Spec{
		Name: p.Name, Path: p.Path, Env: peer.RuntimeEnv(), Ready: "/-/ready", Log: filepath.Join(b.env.Cache, "logs", "storestream.log"),
		Args: func(addr string) []string { return []string{"-serve=" + addr, "-grpc=" + address} },
	})
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return g, err
	}
	defer conn.Close()
	// The request for few series is repeated until manySeries were sent in total, so that the servers of both
	// measurements work equally long: a single short response would end before the first garbage collection.
	return server.GrowthDuring(ctx, func() error {
		for range manySeries / n {
			if err := drainSeries(ctx, conn, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// drainSeries reads a response of n series.
func drainSeries(ctx context.Context, conn *grpc.ClientConn, n int) error {
	set := storeapi.NewClient(conn, storeapi.ClientOptions{}).Series(ctx, storeapi.SeriesRequest{
		MaxMS: 1, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "series", strconv.Itoa(n))},
	})
	defer set.Close()
	got := 0
	for set.Next() {
		got++
	}
	if set.Err() == nil && got != n {
		return fmt.Errorf("%d series of %d: %w", got, n, area.ErrUnequal)
	}
	return set.Err()
}
