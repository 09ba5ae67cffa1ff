package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

const migrationConfig = "storage: {tsdb: {out_of_order_time_window: 6h}}\n"

// writeLate writes a new sample of a series and then 30 late ones.
func writeLate(t *testing.T, s *server, name string, now time.Time) {
	t.Helper()
	for _, minutes := range []int{0, 180} {
		ts := v1Series(0, 0, "__name__", name)
		ts.Samples = nil
		for i := range max(1, minutes/6) {
			at := now.Add(time.Duration(i-minutes) * time.Minute)
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: at.UnixMilli(), Value: float64(i + minutes)})
		}
		if status, text, _ := s.write(v1Type, "snappy", encoded(t, v1(ts))); status/100 != 2 {
			t.Fatalf("%s: %d %s", s.base, status, text)
		}
	}
}

// ferula serve opens a data directory of Prometheus (write-ahead log, log of late samples, mapped
// chunks, a snapshot of the head), writes to it and is killed. Then Prometheus opens it again.
func TestPeerPrometheus_DataFolderGoesThereAndBack(t *testing.T) {
	prometheus, path := peerBinary(t, "prometheus"), binary(t)
	dir := t.TempDir()
	data, config := filepath.Join(dir, "data"), writeFile(t, filepath.Join(dir, "prometheus.yml"), migrationConfig)
	args := []string{"--config.file=" + config, "--storage.tsdb.path=" + data, "--enable-feature=memory-snapshot-on-shutdown"}
	run := func(t *testing.T) *server {
		address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		startPeer(t, "http://"+address+"/-/ready", prometheus, append([]string{"--web.listen-address=" + address, "--web.enable-remote-write-receiver", "--log.level=warn"}, args...)...)
		return &server{t: t, base: "http://" + address}
	}
	now := time.Now()
	var start, end int64
	var count int
	var sum float64
	check := func(t *testing.T, s *server, late ...string) {
		t.Helper()
		if c, v := s.promQLTotals(start, end); c != count || v != sum {
			t.Errorf("%d samples of sum %g, want %d of %g", c, v, count, sum)
		}
		for _, name := range late {
			if got := s.value("count_over_time("+name+"[6h])", "time", fmt.Sprint(now.Unix()+1)); got != "31" {
				t.Errorf("%s has %q samples, want 31", name, got)
			}
		}
	}
	t.Run("Prometheus writes", func(t *testing.T) {
		s := run(t)
		start, end = writeReadable(t, 5, s)
		count, sum = s.promQLTotals(start, end)
		writeLate(t, s, "late_there", now)
		check(t, s, "late_there")
	})
	if snapshots, err := filepath.Glob(filepath.Join(data, "chunk_snapshot.*")); err != nil || len(snapshots) != 1 || count == 0 {
		t.Fatalf("snapshots of the head: %q, %v; %d samples", snapshots, err, count)
	}
	t.Run("ferula serve reads and writes", func(t *testing.T) {
		p := startProcess(t, path, append([]string{"serve", "--web.listen-address=127.0.0.1:0"}, args...)...)
		check(t, p.server, "late_there")
		writeLate(t, p.server, "late_back", now)
		check(t, p.server, "late_there", "late_back")
		if err := p.signal(os.Signal(syscall.SIGKILL)); err == nil {
			t.Error("the process was not killed")
		}
	})
	t.Run("Prometheus reads again", func(t *testing.T) {
		check(t, run(t), "late_there", "late_back")
	})
}
