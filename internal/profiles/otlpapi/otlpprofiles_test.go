package otlpapi

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

	"github.com/ferula-io/ferula/internal/profiles/otlp"
	"github.com/ferula-io/ferula/internal/reqbody"
)

var errFull = errors.New("full for now")

// stub is a Pusher that keeps what was pushed.
type stub struct {
	tenant   string
	periods  []int64
	rejected int
	err      error
	refused  []error
}

func (s *stub) PushOTLP(_ context.Context, tenant string, r *otlp.Request) (int, error, error) {
	s.tenant = tenant
	for _, p := range r.Profiles {
		s.periods = append(s.periods, p.Period)
	}
	if s.rejected > 0 {
		return s.rejected, errors.New("profiles[7] is bad"), nil
	}
	return 0, nil, s.err
}

func (s *stub) Refused(err error) { s.refused = append(s.refused, err) }

func statusOf(err error) int {
	switch {
	case errors.Is(err, errFull):
		return http.StatusTooManyRequests
	case errors.Is(err, otlp.ErrUnsupported):
		return http.StatusUnsupportedMediaType
	case errors.Is(err, reqbody.ErrTooLarge):
		return reqbody.Status(err)
	}
	return http.StatusBadRequest
}

func newServer(s *stub) *Server {
	tenant := func(h http.Header) (string, error) {
		if h.Get("X-Scope-OrgID") == "bad" {
			return "", errors.New("bad tenant")
		}
		return h.Get("X-Scope-OrgID"), nil
	}
	return New(Options{Tenant: tenant, Status: statusOf, BytesMax: 1 << 20, BytesFlag: " (--max)"}, s)
}

func request(t *testing.T) pprofileotlp.ExportRequest {
	t.Helper()
	all := pprofile.NewProfiles()
	all.ResourceProfiles().AppendEmpty().ScopeProfiles().AppendEmpty().Profiles().AppendEmpty().SetPeriod(42)
	return pprofileotlp.NewExportRequestFromProfiles(all)
}

func zipped(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func export(s *Server, tenant, contentType, encoding string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Content-Encoding", encoding)
	r.Header.Set("X-Scope-OrgID", tenant)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const protobuf = "application/x-protobuf"

func TestServer_EveryEncodingIsReadAndTheResponseHasTheSame(t *testing.T) {
	raw, err := request(t).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	text, err := request(t).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, contentType, encoding string
		body                        []byte
		asJSON                      bool
	}{
		{"protobuf", protobuf, "", raw, false},
		{"gzip", protobuf, "gzip", zipped(t, raw), false},
		{"JSON", "application/json; charset=utf-8", "identity", text, true},
		{"JSON and gzip", "application/json", "gzip", zipped(t, text), true},
	} {
		pusher := &stub{}
		s := newServer(pusher)
		w := export(s, "acme", tt.contentType, tt.encoding, tt.body)
		if w.Code != http.StatusOK || len(pusher.periods) != 1 || pusher.periods[0] != 42 || pusher.tenant != "acme" || len(pusher.refused) != 0 {
			t.Errorf("%s: %d %q, %+v", tt.name, w.Code, w.Body, pusher)
		}
		response := pprofileotlp.NewExportResponse()
		decode := response.UnmarshalProto
		if tt.asJSON {
			decode = response.UnmarshalJSON
		}
		if got := w.Body.String(); tt.asJSON && got != "{}" || !tt.asJSON && got != "" {
			t.Errorf("%s: %q has a partial success", tt.name, got)
		}
		if err := decode(w.Body.Bytes()); err != nil || response.PartialSuccess().RejectedProfiles() != 0 {
			t.Errorf("%s: %q: %v", tt.name, w.Body, err)
		}
		pusher.rejected = 3
		if err := decode(export(s, "acme", tt.contentType, tt.encoding, tt.body).Body.Bytes()); err != nil || response.PartialSuccess().RejectedProfiles() != 3 || response.PartialSuccess().ErrorMessage() != "profiles[7] is bad" {
			t.Errorf("%s: %v: %d %s", tt.name, err, response.PartialSuccess().RejectedProfiles(), response.PartialSuccess().ErrorMessage())
		}
	}
}

func TestServer_RefusedRequestsHaveAStatusInTheirEncoding(t *testing.T) {
	raw, err := request(t).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, tenant, contentType, encoding string
		body                                []byte
		err                                 error
		code                                int
		text                                string
		grpc                                codes.Code
		refused                             int
	}{
		{"encoding", "", protobuf, "zstd", raw, nil, http.StatusUnsupportedMediaType, "zstd", codes.InvalidArgument, 1},
		{"garbage", "", protobuf, "", []byte{0x0A, 0xFF}, nil, http.StatusBadRequest, "invalid OTLP profiles", codes.InvalidArgument, 1},
		{"gzip", "", protobuf, "gzip", []byte("no gzip"), nil, http.StatusBadRequest, "gzip", codes.InvalidArgument, 1},
		{"JSON", "", "application/json", "", []byte("{"), nil, http.StatusBadRequest, "invalid OTLP profiles", codes.InvalidArgument, 1},
		{"bomb", "", protobuf, "gzip", zipped(t, make([]byte, 1<<20+1)), nil, http.StatusRequestEntityTooLarge, "1048576 bytes when decompressed (--max)", codes.ResourceExhausted, 1},
		{"large", "", protobuf, "", make([]byte, 1<<20+1), nil, http.StatusRequestEntityTooLarge, "1048576 bytes (--max)", codes.ResourceExhausted, 1},
		{"tenant", "bad", protobuf, "", raw, nil, http.StatusBadRequest, "bad tenant", codes.InvalidArgument, 0},
		{"rate", "", protobuf, "", raw, errFull, http.StatusTooManyRequests, "full for now", codes.ResourceExhausted, 0},
	} {
		pusher := &stub{err: tt.err}
		w := export(newServer(pusher), tt.tenant, tt.contentType, tt.encoding, tt.body)
		var got statuspb.Status
		if tt.contentType == protobuf {
			err = proto.Unmarshal(w.Body.Bytes(), &got)
		} else {
			err = json.Unmarshal(w.Body.Bytes(), &got)
		}
		if err != nil || w.Code != tt.code || codes.Code(got.Code) != tt.grpc || !strings.Contains(got.Message, tt.text) || w.Header().Get("Content-Type") != tt.contentType {
			t.Errorf("%s: %d %v %q, %v", tt.name, w.Code, codes.Code(got.Code), got.Message, err)
		}
		if len(pusher.refused) != tt.refused || (w.Header().Get("Retry-After") != "") != (tt.code == http.StatusTooManyRequests) {
			t.Errorf("%s: refused %v, Retry-After %q", tt.name, pusher.refused, w.Header().Get("Retry-After"))
		}
	}
	if w := export(newServer(&stub{}), "", "text/plain", "", raw); w.Code != http.StatusUnsupportedMediaType || !strings.Contains(w.Body.String(), "application/x-protobuf") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestRegisterGRPC_ServesTheCollectorsClient(t *testing.T) {
	pusher, ready := &stub{}, false
	server := grpc.NewServer()
	newServer(pusher).RegisterGRPC(server, func() bool { return ready })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := pprofileotlp.NewGRPCClient(conn)
	send := func(tenant string) (pprofileotlp.ExportResponse, error) {
		return client.Export(metadata.AppendToOutgoingContext(context.Background(), "x-scope-orgid", tenant), request(t))
	}
	if _, err := send("acme"); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	ready = true
	if response, err := send("acme"); err != nil || response.PartialSuccess().RejectedProfiles() != 0 || pusher.tenant != "acme" || len(pusher.periods) != 1 || pusher.periods[0] != 42 {
		t.Error(err, pusher)
	}
	pusher.rejected = 2
	if response, err := send("acme"); err != nil || response.PartialSuccess().RejectedProfiles() != 2 || response.PartialSuccess().ErrorMessage() == "" {
		t.Error(err, response)
	}
	if _, err := send("bad"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	pusher.rejected, pusher.err = 0, errFull
	if _, err := send("acme"); status.Code(err) != codes.ResourceExhausted || len(status.Convert(err).Details()) != 1 {
		t.Error(err, "has no time for a retry")
	}
}

// Messages that wait for a slot are in memory: they count as bodies, and without budget they do not wait.
func TestPushHeld_WaitingMessagesAreBounded(t *testing.T) {
	raw, err := request(t).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	pusher := &stub{}
	s := newServer(pusher)
	s.opts.Bodies = reqbody.New(reqbody.Options{BytesMax: int64(len(raw)) + 1, Wait: time.Minute})
	for range slotsMax {
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
	if _, _, err := s.pushHeld(context.Background(), "acme", raw); !errors.Is(err, reqbody.ErrBusy) || len(pusher.refused) != 1 {
		t.Errorf("%v, refused %v", err, pusher.refused)
	}
	<-s.slots
	if err := <-waits; err != nil || len(pusher.periods) != 1 {
		t.Errorf("%v, %d pushed", err, len(pusher.periods))
	}
	if release, err := s.opts.Bodies.Hold(int64(len(raw)) + 1); err != nil {
		t.Error("bytes are not returned:", err)
	} else {
		release()
	}
	if _, _, err := s.pushHeld(context.Background(), "acme", make([]byte, 1<<20+1)); !errors.Is(err, reqbody.ErrTooLarge) || !strings.HasSuffix(err.Error(), "(--max)") {
		t.Error(err)
	}
}
