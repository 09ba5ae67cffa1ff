package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// partialStub is a stub with partial results.
type partialStub struct {
	stub
	warnings []error
}

func (l *partialStub) LabelNames(context.Context, *profiles.LabelsRequest) ([]string, []error, error) {
	return []string{"a"}, l.warnings, nil
}

func (l *partialStub) LabelValues(context.Context, *profiles.LabelsRequest) ([]string, []error, error) {
	return []string{"a"}, l.warnings, nil
}

func (l *partialStub) MergeFlame(ctx context.Context, r *profiles.MergeRequest) (*profiles.FlameGraph, error) {
	f, err := l.stub.MergeFlame(ctx, r)
	if err == nil {
		f.Warnings = l.warnings
	}
	return f, err
}

func TestServer_PartialResponseHasWarningsInEveryProtocol(t *testing.T) {
	l := &partialStub{warnings: []error{errors.New("block 01: corrupt\r\n\u00fc data")}}
	const want = "block 01: corrupt data"
	mux := http.NewServeMux()
	s := New(Options{}, l, l)
	s.Register(mux, "", nil)
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	check := func(what string, h http.Header) {
		t.Helper()
		if h.Get(partialHeader) != "true" || strings.Join(h.Values(warningHeader), "|") != want {
			t.Errorf("%s: %v", what, h)
		}
	}
	for name, options := range map[string][]connect.ClientOption{"Connect": nil, "JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-web": {connect.WithGRPCWeb()}} {
		client := connect.NewClient[profilepb.LabelNamesRequest, profilepb.LabelNamesResponse](server.Client(), server.URL+querierPath+"LabelNames", options...)
		response, err := client.CallUnary(context.Background(), connect.NewRequest(&profilepb.LabelNamesRequest{}))
		if err != nil || len(response.Msg.Names) != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		check(name+" header", response.Header())
		check(name+" trailer", response.Trailer())
	}
	get := func(path string) (http.Header, string) {
		t.Helper()
		resp, err := server.Client().Get(server.URL + path)
		must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v %s", path, err, text)
		}
		return resp.Header, string(text)
	}
	for path, member := range map[string]bool{
		"/pyroscope/render?query=" + cpu + "&from=1&until=60": true, "/pyroscope/render?format=dot&query=" + cpu + "&from=1&until=60": false,
		"/pyroscope/render-diff?leftQuery=" + cpu + "&rightQuery=" + cpu: true, "/pyroscope/label-names": false, "/pyroscope/label-values?label=a": false,
	} {
		h, text := get(path)
		check(path, h)
		if strings.HasSuffix(text, `,"warnings":["`+want+`"]}`) != member {
			t.Errorf("%s: %s", path, text)
		}
	}
	l.warnings = nil
	if h, text := get("/pyroscope/render-diff?leftQuery=" + cpu + "&rightQuery=" + cpu); h.Get(partialHeader) != "" || strings.Contains(text, "warnings") {
		t.Errorf("a whole response: %v %s", h, text)
	}
}

func TestWarn_BoundsNumberAndLengthOfWarnings(t *testing.T) {
	l := &partialStub{}
	for i := range 5000 {
		l.warnings = append(l.warnings, fmt.Errorf("block %d: %s", i/2, strings.Repeat("x", 10_000)))
	}
	conn := overGRPC(t, New(Options{}, l, l), func() bool { return true })
	var header, trailer metadata.MD
	var response profilepb.LabelNamesResponse
	if err := conn.Invoke(context.Background(), querierPath+"LabelNames", &profilepb.LabelNamesRequest{}, &response, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil || len(response.Names) != 1 {
		t.Fatal(err)
	}
	for _, md := range []metadata.MD{header, trailer} {
		texts := md.Get(warningHeader)
		if len(md.Get(partialHeader)) != 1 || len(texts) != warningsMax || texts[warningsMax-1] != "and 4982 more" {
			t.Errorf("%d warnings, the last is %s", len(texts), texts[len(texts)-1])
		}
		for _, text := range texts {
			if len(text) > warningBytesMax {
				t.Errorf("a warning of %d bytes", len(text))
			}
		}
	}
}

func TestServer_LabelsWithoutARangeAreThoseOfTheLastHour(t *testing.T) {
	s := New(Options{}, nil, nil)
	before := time.Now().UnixMilli()
	r, err := s.labelsQuery("t", nil, 0, 0)
	if after := time.Now().UnixMilli(); err != nil || r.EndMS < before || r.EndMS > after || r.StartMS != r.EndMS-3_600_000 {
		t.Errorf("%+v %v", r, err)
	}
	if r, err = s.labelsQuery("t", nil, 5, 7); err != nil || r.StartMS != 5 || r.EndMS != 7 {
		t.Errorf("%+v %v", r, err)
	}
}
