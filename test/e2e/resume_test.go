package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/storage/remote"
)

// counter is a receiver that counts how often it has accepted each sample, by metric, kind and timestamp. While it stalls,
// requests wait until their clients give up.
type counter struct {
	*httptest.Server
	stalls atomic.Bool
	down   atomic.Bool

	mu    sync.Mutex
	times map[string]int
}

func newCounter(t *testing.T) *counter {
	c := &counter{times: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(c.Server.Close)
	return c
}

func (c *counter) receive(w http.ResponseWriter, r *http.Request) {
	request, err := remote.DecodeWriteRequest(r.Body)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case c.stalls.Load():
		<-r.Context().Done()
		return
	case c.down.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, series := range request.Timeseries {
		name := ""
		for _, l := range series.Labels {
			if l.Name == "__name__" {
				name = l.Value
			}
		}
		for _, s := range series.Samples {
			c.times[fmt.Sprint(name, " ", s.Timestamp)]++
		}
		for _, h := range series.Histograms {
			c.times[fmt.Sprint(name, " ", h.Timestamp)]++
		}
		for _, e := range series.Exemplars {
			c.times[fmt.Sprint(name, " exemplar ", e.Timestamp)]++
		}
	}
}

// missing returns how many of the samples the receiver has not accepted.
func (c *counter) missing(samples []string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range samples {
		if c.times[s] == 0 {
			n++
		}
	}
	return n
}

// most returns how often the receiver has accepted the sample that it got most often.
func (c *counter) most() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.times {
		n = max(n, times)
	}
	return n
}

// The whole log fits into one segment here: what a restart may send again is sent at most twice.
func TestServe_RemoteWriteGoesOnWhereItStopped(t *testing.T) {
	for name, test := range map[string]struct {
		signal syscall.Signal
		stall  func(*counter, bool)
	}{
		"SIGTERM while the receiver stalls":  {syscall.SIGTERM, func(c *counter, on bool) { c.stalls.Store(on) }},
		"SIGKILL while the receiver stalls":  {syscall.SIGKILL, func(c *counter, on bool) { c.stalls.Store(on) }},
		"SIGTERM while the receiver is down": {syscall.SIGTERM, func(c *counter, on bool) { c.down.Store(on) }},
		"SIGKILL while the receiver is down": {syscall.SIGKILL, func(c *counter, on bool) { c.down.Store(on) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiver := newCounter(t)
			config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), fmt.Sprintf(`
remote_write:
- url: %s
  send_exemplars: true
  send_native_histograms: true
  queue_config: {batch_send_deadline: 20ms, min_backoff: 10ms, max_backoff: 50ms}
  metadata_config: {send: false}
`, receiver.URL))
			args := []string{"serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path=" + t.TempDir(),
				"--config.file=" + config}
			sender := startProcess(t, binary(t), append(slices.Clone(args), "--storage.remote.flush-deadline=100ms")...)
			now := time.Now().UnixMilli()
			var acknowledged []string
			write := func(metric string, n int) {
				now++
				sender.series(t, metric, 0, n, now)
				for range n {
					acknowledged = append(acknowledged, fmt.Sprint(metric, " ", now))
					now++
				}
			}
			all := func() bool { return receiver.missing(acknowledged) == 0 }
			write("kept", 50)
			eventually(t, 30*time.Second, "the first samples at the receiver", all)
			test.stall(receiver, true)
			write("kept", 50)
			write("other", 50)
			sender.must(v2Type, encoded(t, everyKind(now)))
			for _, s := range []string{"pears ", "pears exemplar ", "latency ", "sizes "} {
				acknowledged = append(acknowledged, fmt.Sprint(s, now))
			}
			if err := sender.signal(test.signal); (err == nil) != (test.signal == syscall.SIGTERM) {
				t.Fatal(err)
			}
			test.stall(receiver, false)
			sender = startProcess(t, binary(t), args...)
			write("kept", 50)
			eventually(t, 30*time.Second, "every sample at the receiver", all)
			if n := receiver.most(); n > 2 {
				t.Errorf("a sample was sent %d times", n)
			}
			if err := sender.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			before := receiver.most()
			sender = startProcess(t, binary(t), args...)
			write("kept", 1)
			eventually(t, 30*time.Second, "a sample after a clean stop", all)
			if n := receiver.most(); n != before {
				t.Error("samples that were sent before a clean stop are sent again")
			}
			_ = sender.signal(syscall.SIGTERM)
		})
	}
}
