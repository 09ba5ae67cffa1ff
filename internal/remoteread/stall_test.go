package remoteread

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// stallingHandler sends the beginning of a stream, or nothing, and then blocks until
// its client disconnects. From the given attempt on it sends all.
func stallingHandler(stream []byte, sent int, from int) http.Handler {
	attempts := 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the handler notices a disconnected client
		if attempts++; attempts >= from {
			streamOf(stream).ServeHTTP(w, r)
			return
		}
		if sent > 0 {
			streamOf(stream[:sent]).ServeHTTP(w, r)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
}

func TestClient_StalledServerIsAnError(t *testing.T) {
	stream := frames(100)
	for _, tt := range []struct {
		name        string
		sent, from  int
		series      int
		want        error
		unavailable bool
	}{
		{"no response", 0, 10, 0, ErrStalled, true},
		{"no response at first", 0, 2, 100, nil, false},
		{"a part of the body", len(stream) / 2, 10, 0, ErrStalled, false},
	} {
		client := NewClient(ClientOptions{URL: serveHandler(t, stallingHandler(stream, tt.sent, tt.from)), StallTimeout: time.Second, Tries: 2, RetryAfter: time.Millisecond})
		set, end := raw(t, client, 0, 10, everything)
		n := 0
		for ; set.Next(); n++ {
		}
		if !errors.Is(set.Err(), tt.want) || tt.want == nil && set.Err() != nil || errors.Is(set.Err(), ErrUnavailable) != tt.unavailable || n != tt.series {
			t.Errorf("%s: %d series, %v", tt.name, n, set.Err())
		}
		if set.Err() != nil && (Permanent(set.Err()) || strings.Count(set.Err().Error(), ErrStalled.Error()) != 1) {
			t.Errorf("%s: %v is permanent or repeats itself", tt.name, set.Err())
		}
		end()
	}
}

func TestClient_SlowCallerIsNoStall(t *testing.T) {
	stream := frames(9000)
	client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(stream)), StallTimeout: time.Second, ReadAheadBytes: 4 << 10, HoldBytesMax: 1 << 10})
	set, end := raw(t, client, 0, 10, everything)
	defer end()
	n := 0
	for ; set.Next(); n++ {
		if n == 100 || n == 5000 {
			time.Sleep(1200 * time.Millisecond) // longer than StallTimeout
		}
	}
	if n != 9000 || set.Err() != nil {
		t.Errorf("%d series, %v", n, set.Err())
	}
}
