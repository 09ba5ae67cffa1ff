package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/httpbody"
)

func newOTLPServer(t *testing.T, limits Limits) (*OTLPServer, *memory) {
	t.Helper()
	tenant := func(h http.Header) (string, error) {
		if h.Get("X-Scope-OrgID") == "bad" {
			return "", errors.New("bad tenant")
		}
		return h.Get("X-Scope-OrgID"), nil
	}
	in, store := newIngester(t, limits)
	return in.NewOTLPServer(OTLPOptions{Tenant: tenant, BytesMax: 1 << 20, BytesFlag: " (--max)"}), store
}

// refusals is the number of requests that were refused before their profiles were pushed.
func refusals(s *OTLPServer) (n uint64) {
	for _, reason := range []string{"invalid", "profile_size", "busy"} {
		n += s.in.discarded.With(reason).Get()
	}
	return n
}

// withOld adds a profile that is too old.
func withOld(p pprofile.Profiles) {
	scope := p.ResourceProfiles().At(0).ScopeProfiles().At(0)
	old := scope.Profiles().AppendEmpty()
	scope.Profiles().At(0).CopyTo(old)
	old.SetTime(1)
}

func otlpExportOf(change func(pprofile.Profiles)) pprofileotlp.ExportRequest {
	return pprofileotlp.NewExportRequestFromProfiles(otlpRequest(change))
}

func zippedBytes(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func exportOTLP(s *OTLPServer, tenant, contentType, encoding string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, OTLPPath, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Content-Encoding", encoding)
	r.Header.Set("X-Scope-OrgID", tenant)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const protobuf = "application/x-protobuf"

func TestOTLPServer_EveryEncodingIsReadAndTheResponseHasTheSame(t *testing.T) {
	for _, change := range []func(pprofile.Profiles){nil, withOld} {
		raw := otlpProto(t, otlpRequest(change))
		text, err := otlpExportOf(change).MarshalJSON()
		must(t, err)
		for _, tt := range []struct {
			name, contentType, encoding string
			body                        []byte
			asJSON                      bool
		}{
			{"protobuf", protobuf, "", raw, false},
			{"gzip", protobuf, "gzip", zippedBytes(t, raw), false},
			{"JSON", "application/json; charset=utf-8", "identity", text, true},
			{"JSON and gzip", "application/json", "gzip", zippedBytes(t, text), true},
		} {
			s, store := newOTLPServer(t, Limits{})
			w := exportOTLP(s, "acme", tt.contentType, tt.encoding, tt.body)
			if w.Code != http.StatusOK || len(store.list()) != 2 || store.list()[0].tenant != "acme" || refusals(s) != 0 {
				t.Errorf("%s: %d %q, %+v", tt.name, w.Code, w.Body, store.list())
			}
			response := pprofileotlp.NewExportResponse()
			decode := response.UnmarshalProto
			if tt.asJSON {
				decode = response.UnmarshalJSON
			}
			if err := decode(w.Body.Bytes()); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			partial := response.PartialSuccess()
			if got := w.Body.String(); change == nil && got != map[bool]string{true: "{}", false: ""}[tt.asJSON] {
				t.Errorf("%s: %q has a partial success", tt.name, got)
			}
			if change != nil && (partial.RejectedProfiles() != 1 || !strings.Contains(partial.ErrorMessage(), "profiles[1]: start time")) {
				t.Errorf("%s: %d %s", tt.name, partial.RejectedProfiles(), partial.ErrorMessage())
			}
		}
	}
}

func TestOTLPServer_RefusedRequestsHaveAStatusInTheirEncoding(t *testing.T) {
	raw := otlpProto(t, otlpRequest(nil))
	for _, tt := range []struct {
		name, tenant, contentType, encoding string
		body                                []byte
		limits                              Limits
		code                                int
		text                                string
		grpc                                codes.Code
		refused                             uint64
	}{
		{"encoding", "", protobuf, "zstd", raw, Limits{}, http.StatusUnsupportedMediaType, "zstd", codes.InvalidArgument, 1},
		{"garbage", "", protobuf, "", []byte{0x0A, 0xFF}, Limits{}, http.StatusBadRequest, "invalid protobuf", codes.InvalidArgument, 1},
		{"gzip", "", protobuf, "gzip", []byte("no gzip"), Limits{}, http.StatusBadRequest, "gzip", codes.InvalidArgument, 1},
		{"JSON", "", "application/json", "", []byte("{"), Limits{}, http.StatusBadRequest, "invalid OTLP profiles", codes.InvalidArgument, 1},
		{"bomb", "", protobuf, "gzip", zippedBytes(t, make([]byte, 1<<20+1)), Limits{}, http.StatusRequestEntityTooLarge, "1048576 bytes when decompressed (--max)", codes.ResourceExhausted, 1},
		{"large", "", protobuf, "", make([]byte, 1<<20+1), Limits{}, http.StatusRequestEntityTooLarge, "1048576 bytes (--max)", codes.ResourceExhausted, 1},
		{"tenant", "bad", protobuf, "", raw, Limits{}, http.StatusBadRequest, "bad tenant", codes.InvalidArgument, 0},
		{"rate", "", protobuf, "", raw, Limits{Series: 1}, http.StatusTooManyRequests, "exceed the limit of 1", codes.ResourceExhausted, 0},
	} {
		s, _ := newOTLPServer(t, tt.limits)
		w := exportOTLP(s, tt.tenant, tt.contentType, tt.encoding, tt.body)
		var got statuspb.Status
		var err error
		if tt.contentType == protobuf {
			err = proto.Unmarshal(w.Body.Bytes(), &got)
		} else {
			err = json.Unmarshal(w.Body.Bytes(), &got)
		}
		if err != nil || w.Code != tt.code || codes.Code(got.Code) != tt.grpc || !strings.Contains(got.Message, tt.text) || w.Header().Get("Content-Type") != tt.contentType {
			t.Errorf("%s: %d %v %q, %v", tt.name, w.Code, codes.Code(got.Code), got.Message, err)
		}
		if n := refusals(s); n != tt.refused || (w.Header().Get("Retry-After") != "") != (tt.code == http.StatusTooManyRequests) {
			t.Errorf("%s: refused %v, Retry-After %q", tt.name, n, w.Header().Get("Retry-After"))
		}
	}
	s, _ := newOTLPServer(t, Limits{})
	if w := exportOTLP(s, "", "text/plain", "", raw); w.Code != http.StatusUnsupportedMediaType || !strings.Contains(w.Body.String(), "application/x-protobuf") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestRegisterGRPC_ServesTheCollectorsClient(t *testing.T) {
	s, store := newOTLPServer(t, Limits{Series: 2})
	server, ready := grpc.NewServer(), false
	s.RegisterGRPC(server, func() bool { return ready })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := pprofileotlp.NewGRPCClient(conn)
	send := func(tenant string, change func(pprofile.Profiles)) (pprofileotlp.ExportResponse, error) {
		return client.Export(metadata.AppendToOutgoingContext(context.Background(), "x-scope-orgid", tenant), otlpExportOf(change))
	}
	if _, err := send("acme", nil); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	ready = true
	if response, err := send("acme", nil); err != nil || response.PartialSuccess().RejectedProfiles() != 0 || len(store.list()) != 2 || store.list()[0].tenant != "acme" {
		t.Error(err, store.list())
	}
	if response, err := send("acme", withOld); err != nil || response.PartialSuccess().RejectedProfiles() != 1 || response.PartialSuccess().ErrorMessage() == "" {
		t.Error(err, response)
	}
	if _, err := send("bad", nil); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	other := func(p pprofile.Profiles) { p.ResourceProfiles().At(0).Resource().Attributes().PutStr("host.name", "b") }
	if _, err := send("acme", other); status.Code(err) != codes.ResourceExhausted || len(status.Convert(err).Details()) != 1 {
		t.Error(err, "has no time for a retry")
	}
}

// Messages that wait for a slot are in memory: they count as bodies, and without budget they do not wait.
func TestPushHeld_WaitingMessagesAreBounded(t *testing.T) {
	raw := otlpProto(t, otlpRequest(nil))
	s, store := newOTLPServer(t, Limits{})
	s.opts.Bodies = httpbody.NewReader(httpbody.Options{BytesMax: int64(len(raw)) + 1, Wait: time.Minute})
	for range otlpSlotsMax {
		s.slots <- struct{}{}
	}
	waits := make(chan error, 1)
	go func() {
		_, _, err := s.pushHeld(context.Background(), "acme", raw)
		waits <- err
	}()
	for {
		release, err := s.opts.Bodies.Hold(2)
		if err != nil {
			break // the first message is held
		}
		release()
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		time.Sleep(time.Millisecond)
	}
	if _, _, err := s.pushHeld(context.Background(), "acme", raw); !errors.Is(err, httpbody.ErrBusy) || refusals(s) != 1 {
		t.Errorf("%v, %d refused", err, refusals(s))
	}
	<-s.slots
	if err := <-waits; err != nil || len(store.list()) != 2 {
		t.Errorf("%v, %d pushed", err, len(store.list()))
	}
	if release, err := s.opts.Bodies.Hold(int64(len(raw)) + 1); err != nil {
		t.Error("bytes are not returned:", err)
	} else {
		release()
	}
	if _, _, err := s.pushHeld(context.Background(), "acme", make([]byte, 1<<20+1)); !errors.Is(err, httpbody.ErrTooLarge) || !strings.HasSuffix(err.Error(), "(--max)") {
		t.Error(err)
	}
}
