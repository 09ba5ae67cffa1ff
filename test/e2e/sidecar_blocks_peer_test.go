package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

const blocksConfig = `
global: {external_labels: {cluster: eu, replica: r1}}
storage: {tsdb: {out_of_order_time_window: %s}}
`

// shortBlocks are flags of a Prometheus that writes a block for each minute of samples, and compacts often.
var shortBlocks = []string{"--storage.tsdb.min-block-duration=1m", "--storage.tsdb.max-block-duration=9m", "--storage.tsdb.retention.time=10y",
	"--web.enable-lifecycle", "--web.enable-admin-api", "--storage.tsdb.block-reload-interval=1s"}

// sidecarPair are two sidecars of one Prometheus: one reads its blocks, the other reads by remote read.
type sidecarPair struct {
	t              *testing.T
	prom           *server
	dir, config    string
	direct, remote *sidecar
	begin          int64        // of the samples, ms
	last           atomic.Int64 // samples up to here are written
}

func startSidecarPair(t *testing.T, window string) *sidecarPair {
	t.Helper()
	p := &sidecarPair{t: t, dir: t.TempDir(), begin: time.Now().Add(-3 * time.Hour).Truncate(time.Hour).UnixMilli()}
	p.config = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), fmt.Sprintf(blocksConfig, window))
	p.prom = prometheusOf(t, p.config, p.dir, shortBlocks...)
	p.direct = startSidecar(t, p.prom.base, func(o *app.SidecarOptions) { o.TSDBDir = p.dir })
	p.remote = startSidecar(t, p.prom.base, nil)
	p.direct.waitReady()
	p.remote.waitReady()
	p.last.Store(p.begin)
	return p
}

// write writes samples of all series from one time to another, every 5 s. Some series have gaps, stale markers, native
// histograms, and a label with the name of an external label.
func (p *sidecarPair) write(from, until int64) {
	for start := from; start < until; start += 30_000 {
		end := min(until, start+30_000)
		var all []prompb.TimeSeries
		for i := range 12 {
			one := v1Series(0, 0, "__name__", "some", "i", fmt.Sprint(i))
			if i == 11 {
				one = v1Series(0, 0, "__name__", "own", "cluster", "us", "i", "1")
			}
			one.Samples = nil
			for at := start; at < end; at += 5000 {
				v := float64(i) + float64(at%77_000)/1e3
				switch {
				case i%4 == 1 && at/60_000%3 == 0:
					continue
				case i%4 == 2 && at%60_000 == 0:
					v = math.Float64frombits(value.StaleNaN)
				case i%4 == 3 && i < 10:
					one.Histograms = append(one.Histograms, prompb.FromIntHistogram(at, tsdbutil.GenerateTestHistogram(at/5000%50)))
					continue
				}
				one.Samples = append(one.Samples, prompb.Sample{Timestamp: at, Value: v})
			}
			if len(one.Samples)+len(one.Histograms) > 0 {
				all = append(all, one)
			}
		}
		p.prom.writeAll([][]byte{encoded(p.t, v1(all...))})
		p.last.Store(end - 5000)
	}
}

// compare compares the responses of both sidecars, and returns the number of series.
func (p *sidecarPair) compare(what string, r storeapi.SeriesRequest) int {
	p.t.Helper()
	for range 50 {
		before, err := storeSeries(p.remote.client, r)
		noError(p.t, err)
		got, err := storeSeries(p.direct.client, r)
		noError(p.t, err)
		after, err := storeSeries(p.remote.client, r)
		noError(p.t, err)
		if !slices.Equal(before, after) {
			continue
		}
		if !slices.Equal(got, after) {
			p.t.Errorf("%s: %d to %d: %d series, by remote read %d", what, r.MinMS-p.begin, r.MaxMS-p.begin, len(got), len(after))
			for i := range min(len(got), len(after)) {
				if got[i] != after[i] {
					p.t.Fatalf("%.700s\nby remote read\n%.700s", firstDifference(got[i], after[i]), firstDifference(after[i], got[i]))
				}
			}
			p.t.FailNow()
		}
		return len(got)
	}
	p.t.Fatalf("%s: the responses by remote read change", what)
	return 0
}

// compareRandom compares ranges that begin and end near the borders of blocks.
func (p *sidecarPair) compareRandom(what string, rng *rand.Rand, n int) {
	p.t.Helper()
	requests := []storeapi.SeriesRequest{
		{Matchers: []*labels.Matcher{equalMatcher("__name__", "some")}},
		{Matchers: []*labels.Matcher{equalMatcher("__name__", "some")}, WithoutReplicaLabels: []string{"replica"}},
		{Matchers: []*labels.Matcher{equalMatcher("__name__", "some")}, WithoutReplicaLabels: []string{"replica", "i"}},
		{Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", "own|some")}},
		{Matchers: []*labels.Matcher{equalMatcher("i", "2"), equalMatcher("cluster", "eu")}},
		{Matchers: []*labels.Matcher{equalMatcher("__name__", "some")}, SkipChunks: true},
		{Matchers: []*labels.Matcher{equalMatcher("__name__", "some")}, Shard: &storeapi.Shard{Index: 1, Total: 3, By: true, Labels: []string{"i"}}},
		{Matchers: []*labels.Matcher{equalMatcher("__name__", "none")}},
	}
	series := 0
	for range n {
		last := p.last.Load()
		near := func() int64 {
			return min(last, p.begin+rng.Int64N((last-p.begin)/60_000+1)*60_000+rng.Int64N(5)*2500-5000)
		}
		r := requests[rng.IntN(len(requests))]
		r.MinMS, r.MaxMS = near(), near()
		if r.MinMS > r.MaxMS {
			r.MinMS, r.MaxMS = r.MaxMS, r.MinMS
		}
		series += p.compare(what, r)
	}
	if series == 0 {
		p.t.Errorf("%s: nothing was compared", what)
	}
}

// remoteReads returns the number of remote reads that Prometheus has answered.
func (p *sidecarPair) remoteReads() float64 {
	_, page := p.prom.get("/metrics")
	n := 0.0
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "prometheus_http_requests_total{") && strings.Contains(line, `handler="/api/v1/read"`) {
			var one float64
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &one)
			n += one
		}
	}
	return n
}

// readsBlocks waits until the older half of the samples is read without Prometheus.
func (p *sidecarPair) readsBlocks() {
	p.t.Helper()
	r := storeapi.SeriesRequest{MinMS: p.begin, MaxMS: (p.begin + p.last.Load()) / 2, Matchers: []*labels.Matcher{equalMatcher("__name__", "some")}}
	eventually(p.t, 60*time.Second, "blocks are read", func() bool {
		before := p.remoteReads()
		lines, err := storeSeries(p.direct.client, r)
		return err == nil && len(lines) > 0 && p.remoteReads() == before
	})
}

func (p *sidecarPair) admin(path string, form url.Values) {
	p.t.Helper()
	if status, text := p.prom.post("/api/v1/admin/tsdb/"+path+"?"+form.Encode(), "", ""); status != 204 {
		p.t.Fatal(status, text)
	}
}

// Samples are written while blocks are cut from the head and compacted. Then samples are deleted, and others come late.
func TestPeerPrometheus_ResponsesFromBlocksEqualThoseByRemoteRead(t *testing.T) {
	p := startSidecarPair(t, "0s")
	rng := rand.New(rand.NewPCG(7, 9))
	written := make(chan struct{})
	go func() {
		defer close(written)
		p.write(p.begin, p.begin+60*60_000)
	}()
	eventually(t, 60*time.Second, "samples", func() bool { return p.last.Load() > p.begin+5*60_000 })
	for running := true; running; {
		select {
		case <-written:
			running = false
		default:
			p.compareRandom("while samples are written", rng, 20)
		}
	}
	p.readsBlocks()
	p.compareRandom("after samples were written", rng, 50)

	at := func(ms int64) string { return fmt.Sprint(float64(p.begin+ms) / 1000) }
	p.admin("delete_series", url.Values{"match[]": {`some{i=~"1|2"}`}, "start": {at(600_000)}, "end": {at(1_900_000)}})
	p.admin("delete_series", url.Values{"match[]": {`some{i="4"}`}})
	p.compareRandom("after a deletion", rng, 30)
	p.readsBlocks()
	p.compareRandom("of blocks with deleted samples", rng, 30)
	p.admin("clean_tombstones", nil)
	p.compareRandom("after a rewrite of blocks", rng, 30)

	writeFile(t, p.config, fmt.Sprintf(blocksConfig, "30m"))
	p.prom.mustReload()
	p.readsBlocks()
	late := v1Series(p.last.Load()-20*60_000-1, 42, "__name__", "some", "i", "0")
	p.prom.writeAll([][]byte{encoded(t, v1(late))})
	p.compare("a late sample", storeapi.SeriesRequest{MinMS: p.begin, MaxMS: p.last.Load(), Matchers: []*labels.Matcher{equalMatcher("__name__", "some"), equalMatcher("i", "0")}})
	p.compareRandom("with late samples", rng, 30)
	p.write(p.last.Load()+5000, p.last.Load()+20*60_000)
	p.compareRandom("with late samples in blocks", rng, 30)
}

// A sidecar with the directory of another Prometheus, with blocks that are damaged, or without a directory reads
// everything through Prometheus.
func TestPeerPrometheus_ASidecarWithAnotherDirectoryReadsEverythingFromPrometheus(t *testing.T) {
	p := startSidecarPair(t, "0s")
	p.write(p.begin, p.begin+20*60_000)
	p.readsBlocks()
	other := t.TempDir()
	var blocks []string
	for _, entry := range try(os.ReadDir(p.dir)).must(t) {
		if len(entry.Name()) == 26 {
			blocks = append(blocks, entry.Name())
			noError(t, os.CopyFS(filepath.Join(other, entry.Name()), os.DirFS(filepath.Join(p.dir, entry.Name()))))
		}
	}
	noError(t, os.Truncate(filepath.Join(other, blocks[0], "index"), 100))
	rng := rand.New(rand.NewPCG(1, 2))
	for name, dir := range map[string]string{"another directory": t.TempDir(), "none": "/nowhere", "a damaged block": other} {
		p.direct = startSidecar(t, p.prom.base, func(o *app.SidecarOptions) { o.TSDBDir = dir })
		p.direct.waitReady()
		before := p.remoteReads()
		p.compareRandom(name, rng, 20)
		if p.remoteReads() < before+40 {
			t.Errorf("%s: %g remote reads", name, p.remoteReads()-before)
		}
	}
}
