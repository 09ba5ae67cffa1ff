package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// A request of little more than a megabyte would decode to a hundred times its size.
func TestServer_RequestsOfManyElementsAreRejected(t *testing.T) {
	many := elementsMax + 1
	for name, c := range map[string]struct {
		path, contentType, body string
	}{
		"push":          {pusherPath + "Push", "application/proto", strings.Repeat("\x0a\x00", many)},
		"push samples":  {pusherPath + "Push", "application/proto", strings.Repeat("\x0a\x02\x12\x00", many/2+1)},
		"push as JSON":  {pusherPath + "Push", "application/json", `{"series":[` + strings.Repeat("{},", many) + `{}]}`},
		"query":         {querierPath + "LabelNames", "application/proto", strings.Repeat("\x0a\x00", many)},
		"query as JSON": {querierPath + "LabelNames", "application/json", `{"matchers":[` + strings.Repeat(`"",`, 2*many) + `""]}`},
	} {
		s := &stub{}
		mux := http.NewServeMux()
		New(Options{}, s, s).Register(mux, "", nil)
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		if _, err := io.WriteString(w, c.body); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		code, text := postGzip(t, mux, c.path, c.contentType, &zipped)
		if code != http.StatusBadRequest || !strings.Contains(text, "too many elements") {
			t.Errorf("%s: %d %.200s", name, code, text)
		}
		if s.tenant != "" {
			t.Errorf("%s: it was executed", name)
		}
	}
}

func TestServer_AQueryIsLimitedBelowAPush(t *testing.T) {
	s := &stub{}
	mux := http.NewServeMux()
	New(Options{}, s, s).Register(mux, "", nil)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	body := `{"profileTypeID":"` + strings.Repeat("x", queryMaxBytes) + `"}`
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	code, text := postGzip(t, mux, querierPath+"SelectSeries", "application/json", &zipped)
	if code != http.StatusTooManyRequests || !strings.Contains(text, "resource_exhausted") {
		t.Errorf("%d %.200s", code, text)
	}
}

// postGzip sends a gzip body.
func postGzip(t *testing.T, h http.Handler, path, contentType string, body io.Reader) (int, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	defer func() { _ = server.Close(); <-done }()
	r, err := http.NewRequest(http.MethodPost, "http://"+listener.Addr().String()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Content-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestTenantOf_RejectsDifferentValues(t *testing.T) {
	for _, values := range [][]string{{"a", "b"}, {"", "b"}, {"a", ""}, {"a", "A"}} {
		if tenant, err := TenantOf(http.Header{"X-Scope-Orgid": values}); err == nil {
			t.Errorf("%q is the tenant %q", values, tenant)
		}
	}
	if tenant, err := TenantOf(http.Header{"X-Scope-Orgid": {"a", "a"}}); err != nil || tenant != "a" {
		t.Errorf("the same value twice: %q, %v", tenant, err)
	}
}

func TestServer_DifferentTenantsAreRejectedInEveryProtocol(t *testing.T) {
	s, base := serve(t, "")
	client := connect.NewClient[profilepb.LabelNamesRequest, profilepb.LabelNamesResponse](http.DefaultClient, base+querierPath+"LabelNames")
	request := connect.NewRequest(&profilepb.LabelNamesRequest{})
	request.Header()["X-Scope-Orgid"] = []string{"a", "b"}
	if _, err := client.CallUnary(context.Background(), request); connect.CodeOf(err) != connect.CodeInvalidArgument || s.tenant != "" {
		t.Errorf("Connect: %v, tenant %q", err, s.tenant)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	New(Options{}, s, s).RegisterGRPC(server, func() bool { return true })
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	defer func() { server.Stop(); <-done }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.Pairs("x-scope-orgid", "a", "x-scope-orgid", "b"))
	err = conn.Invoke(ctx, querierPath+"LabelNames", &profilepb.LabelNamesRequest{}, &profilepb.LabelNamesResponse{})
	if status.Code(err) != codes.InvalidArgument || s.tenant != "" {
		t.Errorf("gRPC: %v, tenant %q", err, s.tenant)
	}
}
