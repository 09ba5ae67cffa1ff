package e2e

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// ingestProfile posts a pprof to /ingest and returns status and body.
func (s *server) ingestProfile(name, tenant string, raw []byte) (int, string) {
	s.t.Helper()
	request, err := http.NewRequest(http.MethodPost, s.base+"/ingest?format=pprof&name="+name, bytes.NewReader(raw))
	if err != nil {
		s.t.Fatal(err)
	}
	if tenant != "" {
		request.Header.Set("X-Scope-OrgID", tenant)
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, body.String()
}

// zipped returns a gzipped pprof, as SDKs send it.
func zipped(t *testing.T, e *pprof.Encoder) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(e.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
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
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
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
		_ = p.signal(syscall.SIGKILL) // its error is the kill
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
	if _, page := p.get("/metrics"); !strings.Contains(page, `ferula_profiles_repaired_total{reason="depth"} 250`) {
		t.Error("truncated stacks are not counted")
	}
	_ = p.signal(syscall.SIGKILL) // its error is the kill
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
	_ = p.signal(syscall.SIGKILL) // its error is the kill
	p = startProcess(t, path, args...)
	for i := 0; i < len(accepted); i += len(accepted)/10 + 1 {
		request, err := http.NewRequest(http.MethodGet, p.base+"/pyroscope/render?format=json&from=now-1h&query="+cpuType+"{}", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Scope-OrgID", accepted[i])
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		if _, err := body.ReadFrom(resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(body.String(), `"numTicks":40`) {
			t.Errorf("tenant %s: %d: %.300s", accepted[i], resp.StatusCode, body.String())
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
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
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
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
