package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/compact"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ingestProfile posts a pprof to /ingest and returns status and body.
func (s *server) ingestProfile(name, tenant string, raw []byte) (int, string) {
	s.t.Helper()
	status, text, _ := s.request("POST", "/ingest?format=pprof&name="+name, string(raw), "X-Scope-OrgID", tenant)
	return status, text
}

// zipped returns a gzipped pprof, as SDKs send it.
func zipped(t *testing.T, e *pprof.Encoder) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	try(z.Write(e.Append(nil))).must(t)
	noError(t, z.Close())
	return b.Bytes()
}

// wideProfile returns a profile of many samples, each with another function.
func wideProfile(t *testing.T, samples int) []byte {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1)
	main := e.Location(e.Function("main", "", "", 0), 1)
	for i := range samples {
		e.Sample([]uint64{e.Location(e.Function("f"+strconv.Itoa(i), "", "", 0), 1), main}, 1)
	}
	return zipped(t, e)
}

// deepProfile returns a profile whose stacks differ only at the root, so that each
// frame of each stack is a node of the call tree.
func deepProfile(t *testing.T, stacks, depth int) []byte {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1)
	shared := e.Location(e.Function("shared", "", "", 0), 1)
	stack := make([]uint64, depth)
	for i := range stack {
		stack[i] = shared
	}
	for i := range stacks {
		stack[depth-1] = e.Location(e.Function("root"+strconv.Itoa(i), "", "", 0), 1)
		e.Sample(stack, 1)
	}
	return zipped(t, e)
}

func (s *server) total(selector string) string { return s.flame(cpuType, selector).Flamegraph.Total }

// residentMB returns the process' anonymous memory in MiB, without mapped files.
func (p *process) residentMB(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skip("needs /proc: ", err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb := try(strconv.Atoi(strings.Fields(rest)[0])).must(t)
			return kb >> 10
		}
	}
	t.Fatal("no RssAnon in /proc/PID/status")
	return 0
}

func profileArgs(dir string, more ...string) []string {
	return append([]string{"serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--storage.tsdb.path=" + dir, "--no-profiles.self", "--log.level=info"}, more...)
}

func TestProfiles_ProfileAcceptedUnderARaisedLimitSurvivesRestarts(t *testing.T) {
	t.Parallel()
	path, dir := binary(t), t.TempDir()
	const samples = 510_000
	raised := []string{"--profiles.limit.samples=1000000", "--profiles.limit.symbols=2000000", "--profiles.limit.decompressed-size=256MB", "--profiles.limit.nodes=2000000",
		"--profiles.limit.burst=256MB"}
	p := startProcess(t, path, profileArgs(dir, raised...)...)
	raw := wideProfile(t, samples)
	if status, body := p.ingestProfile("wide", "", raw); status != http.StatusOK {
		t.Fatalf("%d: %s", status, body)
	}
	for i, args := range [][]string{raised, nil} { // the raised limits, then the default ones
		p.kill()
		p = startProcess(t, path, profileArgs(dir, args...)...)
		if total := p.total(`{service_name="wide"}`); total != strconv.Itoa(samples) {
			t.Errorf("restart %d: the total is %s", i, total)
		}
	}
	if status, body := p.ingestProfile("wide", "", raw); status != http.StatusBadRequest {
		t.Errorf("with lower limits: %d: %s", status, body)
	}
}

func TestProfiles_DeepStacksNeitherFillMemoryNorPreventARestart(t *testing.T) {
	path, dir := binary(t), t.TempDir()
	p := startProcess(t, path, profileArgs(dir)...)
	before := p.residentMB(t)
	if status, body := p.ingestProfile("hostile", "", deepProfile(t, 250, 3000)); status != http.StatusOK {
		t.Fatalf("%d: %s", status, body) // the stacks are truncated, not refused
	}
	if total := p.total(`{service_name="hostile"}`); total != "250" {
		t.Errorf("the total is %s", total)
	}
	if status, body := p.ingestProfile("hostile", "", deepProfile(t, 1300, 2900)); status != http.StatusBadRequest || !strings.Contains(body, "nodes") {
		t.Errorf("a profile of the maximum size: %d: %s", status, body)
	}
	if grown := p.residentMB(t) - before; grown > 200 {
		t.Errorf("two pushes hold %d MB", grown)
	}
	p.expect("/metrics", 0, `ferula_profiles_repaired_total{reason="depth"} 250`)
	p.kill()
	p = startProcess(t, path, profileArgs(dir)...)
	if total := p.total(`{service_name="hostile"}`); total != "250" {
		t.Errorf("after a restart the total is %s", total)
	}
}

func TestProfiles_AThousandTenantsShareTheHeadMemoryLimit(t *testing.T) {
	path, dir := binary(t), t.TempDir()
	args := profileArgs(dir, "--profiles.head-size=64MB", "--profiles.multitenancy")
	p := startProcess(t, path, args...)
	before := p.residentMB(t)
	raw := deepProfile(t, 40, 900)
	var mu sync.Mutex
	counts := map[int]int{}
	var accepted []string
	var pushing sync.WaitGroup
	for worker := range 8 {
		pushing.Go(func() {
			for n := worker; n < 1000; n += 8 {
				tenant := fmt.Sprint("tenant-", n)
				status, _ := p.ingestProfile("many", tenant, raw)
				mu.Lock()
				if counts[status]++; status == http.StatusOK {
					accepted = append(accepted, tenant)
				}
				mu.Unlock()
			}
		})
	}
	pushing.Wait()
	if counts[http.StatusOK] < 10 || counts[http.StatusOK]+counts[http.StatusServiceUnavailable] != 1000 {
		t.Errorf("statuses: %v", counts)
	}
	if grown := p.residentMB(t) - before; grown > 400 {
		t.Errorf("%d MB", grown)
	}
	t.Logf("statuses: %v, %d MB before, %d MB now", counts, before, p.residentMB(t))
	p.kill()
	p = startProcess(t, path, args...)
	for i := 0; i < len(accepted); i += len(accepted)/10 + 1 {
		status, body, _ := p.request("GET", "/pyroscope/render?format=json&from=now-1h&query="+cpuType+"{}", "", "X-Scope-OrgID", accepted[i])
		if status != http.StatusOK || !strings.Contains(body, `"numTicks":40`) {
			t.Errorf("tenant %s: %d: %.300s", accepted[i], status, body)
		}
	}
}

func TestProfiles_TenantsThatAreNotServedAreLogged(t *testing.T) {
	dir := t.TempDir()
	first := startServe(t, func(o *app.ServeOptions) { o.Profiles.Store.Dir = dir })
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Sample([]uint64{e.Location(e.Function("f", "", "", 0), 1)}, 1)
	if status, text := first.ingestProfile("app", "team-a", e.Append(nil)); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	noError(t, first.stop())
	for _, single := range []bool{true, false} {
		var log lockedBuffer
		s := startServe(t, func(o *app.ServeOptions) {
			o.Profiles.Store.Dir, o.Profiles.SingleTenant = dir, single
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		got := log.String()
		if warned := strings.Contains(got, "--profiles.multitenancy") && strings.Contains(got, "first=team-a"); warned != single {
			t.Errorf("single tenant %v: the log: %s", single, got)
		}
		noError(t, s.stop())
	}
}

// pushUntilGone uploads profiles of one stack each, each with another function, until the
// server no longer responds. It returns the number of acknowledged uploads.
func (p *process) pushUntilGone(t *testing.T, round, writer int, first func()) int {
	client := &http.Client{Timeout: 10 * time.Second}
	for n := 0; ; n++ {
		resp, err := client.Post(fmt.Sprintf("%s/ingest?name=killed%%7Bwriter=w%d%%7D&units=objects", p.base, writer), "text/plain", strings.NewReader(fmt.Sprintf("main;f_%d_%d_%d 1", round, writer, n)))
		if err != nil {
			return n
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("writer %d: status %d", writer, resp.StatusCode)
			return n
		}
		if n == 0 {
			first()
		}
	}
}

func TestProfiles_KillLosesNoAcknowledgedProfileAndDuplicatesNone(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	const writers = 4
	path, dir := binary(t), t.TempDir()
	args := []string{"serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--storage.tsdb.path=" + dir, "--no-profiles.self", "--profiles.max-nodes=1000000", "--log.level=info"}
	var acknowledged [][writers]int
	for round := range rounds {
		p := startProcess(t, path, args...)
		var counts [writers]int
		var pushing, begun sync.WaitGroup
		begun.Add(writers)
		for w := range writers {
			first := sync.OnceFunc(begun.Done)
			pushing.Go(func() {
				defer first()
				counts[w] = p.pushUntilGone(t, round, w, first)
			})
		}
		begun.Wait()
		time.Sleep(time.Duration(50+round*20) * time.Millisecond)
		p.kill()
		pushing.Wait()
		acknowledged = append(acknowledged, counts)
	}
	p := startProcess(t, path, args...)
	values := p.selfByName("memory:inuse_objects:count:space:bytes", `{service_name="killed"}`)
	total := 0
	for round, counts := range acknowledged {
		for w, n := range counts {
			total += n
			for i := range n {
				if name := fmt.Sprintf("f_%d_%d_%d", round, w, i); values[name] != 1 {
					t.Fatalf("acknowledged %s is stored %d times", name, values[name])
				}
			}
			if extra := fmt.Sprintf("f_%d_%d_%d", round, w, n); values[extra] > 1 {
				t.Errorf("%s is stored %d times", extra, values[extra])
			}
		}
	}
	if total < rounds*writers {
		t.Errorf("only %d profiles were acknowledged", total)
	}
	t.Logf("%d profiles acknowledged in %d rounds", total, rounds)
	noError(t, p.signal(syscall.SIGTERM))
}

// selfByName returns the self values of a flame graph, summed by function.
func (s *server) selfByName(profileType, selector string) map[string]int64 {
	f := s.flame(profileType, selector)
	out := map[string]int64{}
	for _, level := range f.Flamegraph.Levels {
		for i := 0; i+3 < len(level.Values); i += 4 {
			self, err := strconv.ParseInt(level.Values[i+2], 10, 64)
			name, err2 := strconv.Atoi(level.Values[i+3])
			if err != nil || err2 != nil {
				s.t.Fatal(level.Values)
			}
			out[f.Flamegraph.Names[name]] += self
		}
	}
	return out
}

func TestProfiles_BlocksOnlyInTheBucketAreQueried(t *testing.T) {
	t.Parallel()
	dir, bucket := t.TempDir(), t.TempDir()
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	over := func(dir string) func(*app.ServeOptions) {
		return func(o *app.ServeOptions) {
			shipping(file, bucket, "")(o)
			o.Store.Dir = dir
			o.Ship.Shipper.Interval = 100 * time.Millisecond
			o.Profiles.Store.HeadAge, o.Profiles.Store.RemoteEvery = time.Second, 100*time.Millisecond
			o.Profiles.Store.Retention = time.Second // a shipped block is deleted from the disk
		}
	}
	s := startServe(t, over(dir))
	from := time.Now().Add(-10 * time.Second).Unix()
	s.mustFold(fmt.Sprintf("name=shop&from=%d&until=now", from), "main;work;sort 3\nmain;idle 1\n")
	want := s.flame(cpuType, `{service_name="shop"}`)
	if !want.has("sort") || want.Flamegraph.Total != "40000000" {
		t.Fatalf("%+v", want)
	}
	glob := func(dir string) int {
		found, _ := filepath.Glob(filepath.Join(dir, "profiles", "*", "*", "index"))
		return len(found)
	}
	eventually(t, 60*time.Second, "the block to be only in the bucket", func() bool {
		if got := s.flame(cpuType, `{service_name="shop"}`); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v\nwant %+v", got, want)
		}
		return glob(bucket) > 0 && glob(dir) == 0
	})
	if got := s.flame(cpuType, `{service_name="shop"}`); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	noError(t, s.stop())
	noError(t, os.RemoveAll(dir))
	s = startServe(t, over(t.TempDir())) // with an empty data directory
	eventually(t, 60*time.Second, "the same flame graph", func() bool {
		return reflect.DeepEqual(s.flame(cpuType, `{service_name="shop"}`), want)
	})
}

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
	c := try(app.NewProfilesCompact(opts)).must(b.t)
	noError(b.t, c.Run(b.t.Context()))
}

// count returns the number of files of profile blocks with a name in a directory.
func (b *compactedBucket) count(dir, name string) int {
	b.t.Helper()
	found := try(filepath.Glob(filepath.Join(dir, "profiles", "*", "*", name))).must(b.t)
	return len(found)
}

// reasons returns how many deletion marks of each reason the bucket has.
func (b *compactedBucket) reasons() map[string]int {
	b.t.Helper()
	found := try(filepath.Glob(filepath.Join(b.dir, "profiles", "*", "*", "deletion-mark.json"))).must(b.t)
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
		s.mustFold(fmt.Sprintf("name=shop&from=%d&until=%d", from, from+10), "main;work;sort 3\nmain;idle 1\n")
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
		noError(t, s.stop())
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

// The test corrupts a block on the disk between two runs of a server.
func TestProfiles_PartialResponseNamesABrokenBlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	change := func(strict bool) func(*app.ServeOptions) {
		return func(o *app.ServeOptions) {
			o.Store.Dir = dir
			o.GRPC.ListenAddress = "127.0.0.1:0"
			o.Profiles.Store.HeadAge = time.Second
			o.Profiles.Query.FailPartial = strict
		}
	}
	s := startServe(t, change(false))
	from := time.Now().Add(-30 * time.Second).Unix()
	s.mustFold(fmt.Sprintf("name=old&from=%d&until=%d", from, from+10), "main;work 3\n")
	var files []string
	eventually(t, 60*time.Second, "the block to be on the disk", func() bool {
		files, _ = filepath.Glob(filepath.Join(dir, "profiles", "*", "0*", "profiles.parquet"))
		return len(files) == 1
	})
	noError(t, s.stop())
	rows := try(os.ReadFile(files[0])).must(t)
	for i := range rows {
		rows[i] ^= 1
	}
	noError(t, os.WriteFile(files[0], rows, 0o644))
	name := "block " + filepath.Base(filepath.Dir(files[0]))
	s = startServe(t, change(false))
	s.mustFold("name=new", "main;rest 2\n")
	check := func(what string, h http.Header) {
		t.Helper()
		if h.Get("Ferula-Partial-Response") != "true" || !strings.HasPrefix(h.Get("Ferula-Warning"), name) {
			t.Errorf("%s: %v, want a warning about %s", what, h, name)
		}
	}
	request := &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, Start: time.Now().Add(-time.Hour).UnixMilli(), End: time.Now().Add(time.Minute).UnixMilli()}
	for protocol, options := range map[string][]connect.ClientOption{"Connect JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-web": {connect.WithGRPCWeb()}} {
		client := connect.NewClient[profilepb.SelectMergeStacktracesRequest, profilepb.SelectMergeStacktracesResponse](h2cClient(t), s.base+"/querier.v1.QuerierService/SelectMergeStacktraces", options...)
		response, err := client.CallUnary(context.Background(), connect.NewRequest(request))
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		check(protocol+" header", response.Header())
		check(protocol+" trailer", response.Trailer())
		if f := response.Msg.GetFlamegraph(); f.GetTotal() != 20_000_000 || !strings.Contains(fmt.Sprint(f.GetNames()), "rest") || strings.Contains(fmt.Sprint(f.GetNames()), "work") {
			t.Errorf("%s: %v", protocol, f)
		}
	}
	conn := try(grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))).must(t)
	defer conn.Close()
	var header, trailer metadata.MD
	var series profilepb.SelectSeriesResponse
	err := conn.Invoke(context.Background(), "/querier.v1.QuerierService/SelectSeries", &profilepb.SelectSeriesRequest{
		ProfileTypeID: cpuType, Start: request.Start, End: request.End, Step: 3600, ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL,
	}, &series, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || len(series.Series) != 1 {
		t.Fatalf("the gRPC port: %v %v", err, &series)
	}
	for what, md := range map[string]metadata.MD{"header": header, "trailer": trailer} {
		check("gRPC port "+what, http.Header{"Ferula-Partial-Response": md.Get("ferula-partial-response"), "Ferula-Warning": md.Get("ferula-warning")})
	}
	resp := try(http.Get(s.base + "/pyroscope/render?query=" + cpuType)).must(t)
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil || !strings.Contains(string(text), `"warnings":["`+name) {
		t.Errorf("render: %v %s", err, text)
	}
	check("render", resp.Header)
	if _, page := s.get("/metrics"); strings.Contains(page, "ferula_profiles_partial_responses_total 0\n") || !strings.Contains(page, "ferula_profiles_partial_responses_total ") {
		t.Error("partial responses are not counted")
	}
	noError(t, s.stop())
	s = startServe(t, change(true))
	if status, text := s.postJSON("querier.v1.QuerierService/SelectMergeStacktraces", lastHour(map[string]any{"profileTypeID": cpuType}), nil); status != http.StatusServiceUnavailable || !strings.Contains(text, name) || !strings.Contains(text, "partial") {
		t.Errorf("without partial responses: %d %s", status, text)
	}
}

const profileRows = `
import sys, duckdb, pyarrow.parquet, pyarrow.compute as pc
path = sys.argv[1]
q = f"select count(*), sum(value), count(distinct profile), count(distinct id), min(time_ns), max(time_ns), sum(samples), sum(list_sum(values) * scale), sum(len(stacks)) from '{path}'"
print("duckdb", *[int(v) for v in duckdb.sql(q).fetchall()[0]])
t = pyarrow.parquet.read_table(path)
sums = sum(sum(v) * s for v, s in zip(t["values"].to_pylist(), t["scale"].to_pylist()) if v)
print("pyarrow", t.num_rows, pc.sum(t["value"]).as_py(), len(set(t["profile"].to_pylist())), len(set(t["id"].to_pylist())),
    pc.min(t["time_ns"]).as_py(), pc.max(t["time_ns"]).as_py(), pc.sum(t["samples"]).as_py(), sums, sum(len(s) for s in t["stacks"].to_pylist()))
`

func TestPeerLibraries_ReadProfileBlocks(t *testing.T) {
	python := os.Getenv("FERULA_TEST_PYTHON")
	if python == "" || exec.Command(python, "-c", "import duckdb, pyarrow").Run() != nil {
		t.Skip("needs FERULA_TEST_PYTHON, a python with duckdb and pyarrow: run .ci/run")
	}
	ctx, dir := context.Background(), t.TempDir()
	s := try(store.New(store.Options{Dir: dir, Retention: -1}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)).must(t)
	noError(t, s.Open())
	defer s.Close()
	const count, from = 20_000, int64(1_700_000_000_000_000_000)
	var pushed []profiles.RawProfile
	var total int64
	samples := 0
	for i := range int64(count) {
		e := pprof.NewEncoder()
		e.SampleType("samples", "count")
		e.SampleType("cpu", "nanoseconds")
		e.Period("cpu", "nanoseconds", 1e7)
		top := e.Location(e.Function("main", "main", "main.go", 1), 2)
		for j := range i % 3 { // every third profile has no samples and is not stored
			e.Sample([]uint64{e.Location(e.Function(fmt.Sprint("f", i%50), "", "", 0), 1+j), top}, i+1, (i+1)*1e7)
			total += (i + 1) * (1 + 1e7)
			samples += 2
		}
		set := labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", fmt.Sprint("s", i%4))
		pushed = append(pushed, profiles.RawProfile{Labels: set, TimeNS: from + i, Raw: e.Append(nil)})
	}
	noError(t, s.Append(ctx, "t", pushed))
	noError(t, s.Flush(ctx))
	files, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "*", "profiles.parquet"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d blocks, %v", len(files), err)
	}
	output, err := exec.Command(python, "-c", profileRows, files[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	const stored = count - (count+2)/3
	rest := fmt.Sprintf(" %d %d %d %d %d %d %d %d %d\n", 2*stored, total, stored, stored, from+1, from+count-1, samples, total, samples)
	if want := "duckdb" + rest + "pyarrow" + rest; string(output) != want {
		t.Errorf("the libraries print\n%swant\n%s", output, want)
	}
}
