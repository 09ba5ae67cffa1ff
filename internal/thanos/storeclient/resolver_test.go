package storeclient

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// zone is a resolver with one SRV record, whose port changes.
type zone struct {
	mu   sync.Mutex
	port uint16
	err  error
}

func (z *zone) LookupIPAddr(context.Context, string) ([]net.IPAddr, error) {
	return []net.IPAddr{{IP: net.IPv4(127, 0, 0, 1)}}, nil
}

func (z *zone) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	return "", []*net.SRV{{Target: "host.", Port: z.port}}, z.err
}

func (z *zone) set(port uint16, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.port, z.err = port, err
}

// serveHealth serves the health service on a port.
func serveHealth(t *testing.T) (port uint16, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	ended := make(chan struct{})
	go func() { _ = s.Serve(l); close(ended) }()
	return uint16(l.Addr().(*net.TCPAddr).Port), sync.OnceFunc(func() { s.Stop(); <-ended })
}

func TestLookups_AGroupFollowsItsSRVRecord(t *testing.T) {
	first, stopFirst := serveHealth(t)
	second, stopSecond := serveHealth(t)
	defer stopFirst()
	defer stopSecond()
	z := &zone{err: errors.New("the name server is down")}
	conn, err := grpc.NewClient(lookupScheme+":///dnssrv+_grpc._tcp.store", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(roundRobin), grpc.WithResolvers(lookupBuilder{z, soonest}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	api := healthpb.NewHealthClient(conn)
	check := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := api.Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	}
	if check() == nil {
		t.Error("a call without addresses succeeded")
	}
	z.set(first, nil)
	for end := time.Now().Add(30 * time.Second); check() != nil; {
		if time.Now().After(end) {
			t.Fatal("the group does not connect")
		}
	}
	z.set(second, nil)
	stopFirst()
	for end := time.Now().Add(30 * time.Second); check() != nil; {
		if time.Now().After(end) {
			t.Fatal("the group does not follow its record")
		}
	}
}

func TestOptions_AnEndpointHasItsOwnConnection(t *testing.T) {
	o := Options{TLS: true, TLSCA: "ca", TLSServerName: "all", TLSMinVersion: "1.3"}
	o.Client.Compression = storeapi.Snappy
	got := o.with(fanout.ClientConfig{TLS: "false", SkipVerify: "true", ServerName: "one", Compression: "none"})
	if got.TLS || !got.TLSSkipVerify || got.TLSCA != "ca" || got.TLSServerName != "one" || got.TLSMinVersion != "1.3" || got.Client.Compression != "" {
		t.Errorf("%+v", got)
	}
	o.TLSCA = ""
	dial, err := o.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := dial(fanout.Address{Name: serve(t), Client: fanout.ClientConfig{TLS: "false"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Info(t.Context()); err != nil {
		t.Errorf("an endpoint without TLS: %v", err)
	}
	if err := plain.Close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []fanout.ClientConfig{{CA: "/absent"}, {ServiceConfig: "{"}} {
		if _, err := dial(fanout.Address{Name: "a:1", Client: bad}); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	group, err := dial(fanout.Address{Name: "dnssrv+_grpc._tcp.absent.invalid", Group: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Close(); err != nil {
		t.Error(err)
	}
}
