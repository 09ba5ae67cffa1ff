package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/app"
)

// Thanos' compactor halts at overlapping blocks. Here it finds blocks of two shutdowns, and a block whose range
// begins where the block of the first shutdown ends. Afterwards Prometheus opens the directory of the server.
func TestPeerThanosCompact_AcceptsBlocksOfShutdowns(t *testing.T) {
	thanos, prometheus := peerBinary(t, "thanos"), peerBinary(t, "prometheus")
	dir, bucket, file := t.TempDir(), t.TempDir(), shutdownConfig(t, "30m")
	begin := time.Now().Truncate(twoHours).Add(-4 * twoHours)
	at := begin
	var s *server
	run := func(until time.Duration) {
		s = startServe(t, func(o *app.ServeOptions) {
			shipping(file, bucket, "")(o)
			o.GRPC.ListenAddress = "127.0.0.1:0"
			o.Store.Dir, o.ShutdownUpload, o.Ship.Shipper.Interval = dir, time.Minute, 100*time.Millisecond
		})
		var bodies [][]byte
		for ; at.Before(begin.Add(until)); at = at.Add(time.Minute) {
			bodies = append(bodies, encoded(t, v1(v1Series(at.UnixMilli(), float64(at.Unix()), "__name__", "kept"))))
		}
		s.writeAll(bodies)
	}
	run(47 * time.Minute)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	run(6 * time.Hour)
	inRange := func(m tsdb.BlockMeta) bool { return m.MaxTime <= begin.Add(twoHours).UnixMilli() }
	eventually(t, 60*time.Second, "the rest of the first range to be shipped", func() bool {
		_, body := s.get("/metrics")
		return strings.Contains(body, "thanos_shipper_uploads_total 2\n")
	})
	ask := func(base *server) string {
		status, body := base.get("/api/v1/query_range?" + url.Values{"query": {`{__name__="kept"}`}, "step": {"60"},
			"start": {fmt.Sprint(begin.Unix())}, "end": {fmt.Sprint(at.Unix())}}.Encode())
		if status != http.StatusOK || strings.Count(body, "[") < 360 {
			t.Errorf("%d %.300s", status, body)
		}
		return body
	}
	want := ask(s)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	blocks, samples := shippedBlocks(t, bucket)
	if samples != 360 || !slices.ContainsFunc(blocks, inRange) {
		t.Errorf("%d samples, %v", samples, blocks)
	}
	yml := writeFile(t, filepath.Join(t.TempDir(), "objstore.yml"), filesystem(bucket))
	out := tool(t, dir, thanos, "tools", "bucket", "verify", "--objstore.config-file="+yml, "--issues=overlapped_blocks",
		"--issues=index_known_issues", "--log.level=warn")
	if strings.Contains(out, "level=") {
		t.Error(out)
	}
	tool(t, dir, thanos, "compact", "--data-dir="+t.TempDir(), "--objstore.config-file="+yml, "--consistency-delay=0s",
		"--delete-delay=0s", fmt.Sprintf("--http-address=127.0.0.1:%d", freePort(t)))
	if after, _ := shippedBlocks(t, bucket); !slices.ContainsFunc(after, func(m tsdb.BlockMeta) bool { return m.Compaction.Level > 1 }) {
		t.Errorf("nothing was compacted: %v", after)
	}
	q := startQuery(t, []string{startStore(t, bucket)}, nil)
	if got := strings.Replace(ask(q.server), `"cluster":"eu"`, "", 1); got != strings.Replace(want, `"__name__":"kept"`, `"__name__":"kept",`, 1) {
		t.Errorf("the compacted bucket responds\n%.500s\nnot\n%.500s", got, want)
	}
	theirs := &server{t: t, base: fmt.Sprintf("http://127.0.0.1:%d", freePort(t))}
	startPeer(t, theirs.base+"/-/ready", prometheus, "--config.file="+file, "--storage.tsdb.path="+dir,
		"--web.listen-address="+strings.TrimPrefix(theirs.base, "http://"))
	if got := ask(theirs); got != want {
		t.Errorf("Prometheus responds\n%.500s\nnot\n%.500s", got, want)
	}
}
