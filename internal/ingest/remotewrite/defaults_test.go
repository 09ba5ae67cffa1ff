package remotewrite

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
)

func TestOptions_MessagesAreOfTwoVersions(t *testing.T) {
	v1, v2 := string(remoteapi.WriteV1MessageType), string(remoteapi.WriteV2MessageType)
	if err := (Options{Messages: []string{v1, v2}}).Validate(); err != nil {
		t.Error(err)
	}
	err := Options{Messages: []string{"one", v1, "two"}}.Validate()
	if err == nil || !strings.Contains(err.Error(), `"one"`) || !strings.Contains(err.Error(), `"two"`) || strings.Contains(err.Error(), `message "`+v1) {
		t.Error(err)
	}
	if got := (Options{}).accepted(); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if got := (Options{Messages: []string{v2}}).accepted(); len(got) != 1 || got[0] != remoteapi.WriteV2MessageType {
		t.Errorf("%v", got)
	}
}

func TestHandler_RefusalIsA503WithItsReason(t *testing.T) {
	reason := error(nil)
	h := NewHandler(Options{Refusal: func() error { return reason }}, &stub{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	push := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(snappy.Encode(nil, nil))))
		return w
	}
	reason = errors.New("the disk is full")
	if w := push(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" || w.Body.String() != "the disk is full\n" {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
	reason = nil
	if w := push(); w.Code/100 != 2 {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}
