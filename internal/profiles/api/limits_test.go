package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
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
		s, code, text := postGzip(t, c.path, c.contentType, c.body)
		if code != http.StatusBadRequest || !strings.Contains(text, "too many elements") {
			t.Errorf("%s: %d %.200s", name, code, text)
		}
		if s.tenant != "" {
			t.Errorf("%s: it was executed", name)
		}
	}
}

func TestServer_AQueryIsLimitedBelowAPush(t *testing.T) {
	body := `{"profileTypeID":"` + strings.Repeat("x", queryMaxBytes) + `"}`
	_, code, text := postGzip(t, querierPath+"SelectSeries", "application/json", body)
	if code != http.StatusTooManyRequests || !strings.Contains(text, "resource_exhausted") {
		t.Errorf("%d %.200s", code, text)
	}
}

// postGzip sends a body with gzip to a server with default limits.
func postGzip(t *testing.T, path, contentType, body string) (*stub, int, string) {
	t.Helper()
	s, mux := &stub{}, http.NewServeMux()
	New(Options{}, s, s).Register(mux, "", nil)
	server := httptest.NewServer(mux)
	defer server.Close()
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := io.WriteString(w, body)
	must(t, errors.Join(err, w.Close()))
	code, text := post(t, server.URL+path, zipped.String(), "Content-Type", contentType, "Content-Encoding", "gzip")
	return s, code, text
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
	conn := overGRPC(t, New(Options{}, s, s), func() bool { return true })
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.Pairs("x-scope-orgid", "a", "x-scope-orgid", "b"))
	err := conn.Invoke(ctx, querierPath+"LabelNames", &profilepb.LabelNamesRequest{}, &profilepb.LabelNamesResponse{})
	if status.Code(err) != codes.InvalidArgument || s.tenant != "" {
		t.Errorf("gRPC: %v, tenant %q", err, s.tenant)
	}
}
