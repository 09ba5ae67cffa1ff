package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/compact"
)

// compactedBucket is a bucket of a server, in a directory.
type compactedBucket struct {
	t       *testing.T
	dir     string
	config  string
	profile string // configuration of the server
}

// server starts a server over the bucket.
func (b *compactedBucket) server(dir string, change func(*app.ServeOptions)) *server {
	b.t.Helper()
	return startServe(b.t, func(o *app.ServeOptions) {
		shipping(b.profile, b.dir, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = 50 * time.Millisecond
		o.Profiles.Limits.Age = 240 * time.Hour
		o.Profiles.Store.HeadAge, o.Profiles.Store.RemoteEvery = time.Second, 50*time.Millisecond
		if change != nil {
			change(o)
		}
	})
}

// compact runs the command that compacts the bucket, once.
func (b *compactedBucket) compact(o compact.Options) {
	b.t.Helper()
	opts := app.ProfilesCompactOptions{Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, Bucket: b.config, Compact: o, Logger: serveOptions(b.t, nil).Logger}
	opts.Compact.Dir = b.t.TempDir()
	c, err := app.NewProfilesCompact(opts)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := c.Run(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// count returns the number of files of profile blocks with a name in a directory.
func (b *compactedBucket) count(dir, name string) int {
	b.t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "profiles", "*", "*", name))
	if err != nil {
		b.t.Fatal(err)
	}
	return len(found)
}

// reasons returns how many deletion marks of each reason the bucket has.
func (b *compactedBucket) reasons() map[string]int {
	b.t.Helper()
	found, err := filepath.Glob(filepath.Join(b.dir, "profiles", "*", "*", "deletion-mark.json"))
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]int{}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // deleted meanwhile
		}
		var mark struct{ Details string }
		if err != nil || len(text) > 0 && json.Unmarshal(text, &mark) != nil {
			b.t.Fatalf("%s: %s %v", path, text, err)
		}
		all[mark.Details]++
	}
	return all
}

// flameOf returns the flame graph of a range.
func (s *server) flameOf(selector string, from, until time.Time) flameResponse {
	s.t.Helper()
	var f flameResponse
	request := map[string]any{"profileTypeID": cpuType, "labelSelector": selector, "start": fmt.Sprint(from.UnixMilli()), "end": fmt.Sprint(until.UnixMilli())}
	if status, text := s.postJSON("querier.v1.QuerierService/SelectMergeStacktraces", request, &f); status != http.StatusOK {
		s.t.Fatalf("%d %s", status, text)
	}
	return f
}

var listRequests = regexp.MustCompile(`(?m)^thanos_objstore_bucket_operations_total\{.*operation="iter".*\} (\d+)`)

// listed waits until the server has listed the bucket three times more.
func (s *server) listed() {
	s.t.Helper()
	requests := func() (n int) {
		_, text := s.get("/metrics")
		if found := listRequests.FindStringSubmatch(text); found != nil {
			_, _ = fmt.Sscan(found[1], &n)
		}
		return n
	}
	begin := requests()
	eventually(s.t, 60*time.Second, "the bucket to be listed", func() bool { return requests() >= begin+3 })
}

// A server's blocks are on its disk and in the bucket, where a command compacts them.
func TestProfiles_BlocksCompactedInTheBucketAreReadOnce(t *testing.T) {
	t.Parallel()
	b := &compactedBucket{t: t, dir: t.TempDir()}
	b.config = "type: FILESYSTEM\nconfig: {directory: " + b.dir + "}\n"
	b.profile = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	dir := t.TempDir()
	disk := func() int { return b.count(dir, "index") }
	s := b.server(dir, nil)
	at := time.Now().Add(-72 * time.Hour).Truncate(24 * time.Hour).Add(time.Hour)
	for n := range 3 {
		from := at.Add(time.Duration(n) * time.Minute).Unix()
		if status, text := s.folded(fmt.Sprintf("name=shop&from=%d&until=%d", from, from+10), "main;work;sort 3\nmain;idle 1\n"); status != http.StatusOK {
			t.Fatal(status, text)
		}
		eventually(t, 60*time.Second, "a block on the disk", func() bool { return disk() == n+1 })
	}
	eventually(t, 60*time.Second, "the blocks to be shipped", func() bool { return b.count(b.dir, "index") == 3 })
	query := func() flameResponse { return s.flameOf(`{service_name="shop"}`, at, at.Add(time.Hour)) }
	want := query()
	if !want.has("sort") || want.Flamegraph.Total != "120000000" {
		t.Fatalf("%+v", want)
	}
	same := func(when string) {
		t.Helper()
		if got := query(); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %+v\nwant %+v", when, got, want)
		}
	}
	b.compact(compact.Options{})
	if blocks, reasons := b.count(b.dir, "index"), b.reasons(); blocks != 4 || reasons["compacted"] != 3 {
		t.Fatalf("%d blocks, marks %v", blocks, reasons)
	}
	same("before the compacted block is listed")
	s.listed()
	if same("with the compacted block"); disk() != 3 || b.count(b.dir, "index") != 4 {
		t.Errorf("%d blocks on the disk, %d in the bucket", disk(), b.count(b.dir, "index"))
	}
	stop := func() {
		t.Helper()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
	stop()

	// The server's own delay is short now, and its disk keeps little. The marks are older than the delay.
	s = b.server(dir, func(o *app.ServeOptions) {
		o.Profiles.Store.Retention, o.Profiles.Store.RemoteDeleteDelay = time.Second, time.Millisecond
	})
	eventually(t, 60*time.Second, "the compacted block alone", func() bool {
		same("while blocks are deleted")
		return disk() == 0 && b.count(b.dir, "index") == 1 && len(b.reasons()) == 0
	})
	s.listed()
	same("from the compacted block")
	stop()

	// The server's retention of the bucket, of which the command does not know.
	s = b.server(dir, func(o *app.ServeOptions) {
		o.Profiles.Store.Retention, o.Profiles.Store.RemoteRetention = time.Hour, 48*time.Hour
	})
	eventually(t, 60*time.Second, "a mark of the server", func() bool { return b.reasons()["retention of ferula serve"] == 1 })
	if got := query(); len(got.Flamegraph.Names) > 1 {
		t.Errorf("beyond the retention: %+v", got)
	}
	b.compact(compact.Options{})
	if blocks, reasons := b.count(b.dir, "index"), b.reasons(); blocks != 1 || reasons["retention of ferula serve"] != 1 {
		t.Errorf("before the delay: %d blocks, marks %v", blocks, reasons)
	}
	stop()
	s = b.server(dir, nil) // without a retention
	eventually(t, 60*time.Second, "the mark to be removed", func() bool { return len(b.reasons()) == 0 })
	same("without the retention")
	stop()
	s = b.server(dir, func(o *app.ServeOptions) {
		o.Profiles.Store.Retention, o.Profiles.Store.RemoteRetention = time.Hour, 48*time.Hour
	})
	eventually(t, 60*time.Second, "a mark again", func() bool { return b.reasons()["retention of ferula serve"] == 1 })
	b.compact(compact.Options{DeleteDelay: -1})
	if files, err := filepath.Glob(filepath.Join(b.dir, "profiles", "*", "*")); err != nil || len(files) > 0 {
		t.Errorf("%s are left, %v", strings.Join(files, " "), err)
	}
}
