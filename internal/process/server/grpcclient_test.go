package server

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ferula-io/ferula/metrics"
)

func pageOf(set *metrics.Set) string {
	var page strings.Builder
	set.WritePrometheus(&page)
	return page.String()
}

// waitFor waits until the page has a line.
func waitFor(t *testing.T, set *metrics.Set, line string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(pageOf(set), line+"\n"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("missing: %s\n%s", line, pageOf(set))
		}
	}
}

func TestMetrics_CountCallsOnceByStatus(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, service)
	ended := make(chan struct{})
	go func() { _ = server.Serve(l); close(ended) }()
	set := metrics.NewSet()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), append(NewClientMetrics(set).DialOptions(nil), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(); server.Stop(); <-ended }()
	api := healthpb.NewHealthClient(conn)
	for _, name := range []string{"", "absent"} {
		if _, err := api.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}); (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
	watch := func() context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := api.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Error(err)
		}
		return cancel
	}
	watch()() // given up by its client
	waitFor(t, set, `grpc_client_handled_total{grpc_code="Canceled",grpc_method="Watch",grpc_service="grpc.health.v1.Health",grpc_type="server_stream"} 1`)
	for _, line := range []string{
		`grpc_client_handled_total{grpc_code="NotFound",grpc_method="Check",grpc_service="grpc.health.v1.Health",grpc_type="unary"} 1`,
		`grpc_client_handled_total{grpc_code="OK",grpc_method="Check",grpc_service="grpc.health.v1.Health",grpc_type="unary"} 1`,
		`grpc_client_started_total{grpc_method="Check",grpc_service="grpc.health.v1.Health",grpc_type="unary"} 2`,
		`grpc_client_msg_received_total{grpc_method="Check",grpc_service="grpc.health.v1.Health",grpc_type="unary"} 1`,
		`grpc_client_msg_received_total{grpc_method="Watch",grpc_service="grpc.health.v1.Health",grpc_type="server_stream"} 1`,
		`grpc_client_msg_sent_total{grpc_method="Watch",grpc_service="grpc.health.v1.Health",grpc_type="server_stream"} 1`,
		`grpc_client_handling_seconds_count{grpc_method="Watch",grpc_service="grpc.health.v1.Health",grpc_type="server_stream"} 1`,
	} {
		if !strings.Contains(pageOf(set), line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Log(pageOf(set))
	}
}
