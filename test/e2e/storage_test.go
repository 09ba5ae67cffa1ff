package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// oldAndNew writes a block that is 40 days old and one that is one day old.
func oldAndNew(t *testing.T, dir string) (old, recent string) {
	t.Helper()
	const blocksADay = 12
	return writeBlock(t, dir, 40*blocksADay, labels.FromStrings("__name__", "old")), writeBlock(t, dir, blocksADay, labels.FromStrings("__name__", "recent"))
}

func blockExists(t *testing.T, dir, block string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, block, "meta.json"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// The TSDB deletes blocks when it opens, so it must get the retention of the file before
// it opens.
func TestServe_StartDeletesOnlyBlocksOutsideTheRetention(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file  string
		flags tsdb.Options
		stays bool
		text  string // storageRetention of /api/v1/status/runtimeinfo
	}{
		"time in the file":                {file: "storage: {tsdb: {retention: {time: 1y}}}", stays: true, text: "1y"},
		"size alone in the file":          {file: "storage: {tsdb: {retention: {size: 1GB}}}", stays: true, text: "1GiB"},
		"percentage alone in the file":    {file: "storage: {tsdb: {retention: {percentage: 99.5}}}", stays: true, text: "99.5%"},
		"no limit in the file":            {file: "storage: {tsdb: {retention: {time: 0s}}}", stays: true},
		"an empty section is no limit":    {file: "storage: {tsdb: {retention: {}}}", stays: true},
		"small size flag, file is larger": {file: "storage: {tsdb: {retention: {size: 1GB}}}", flags: tsdb.Options{RetentionBytes: 1}, stays: true, text: "1GiB"},
		"short flag, file is longer":      {file: "storage: {tsdb: {retention: {time: 1y}}}", flags: tsdb.Options{Retention: 24 * time.Hour}, stays: true, text: "1y"},
		"long flag, no section":           {file: "storage: {tsdb: {out_of_order_time_window: 5m}}", flags: tsdb.Options{Retention: 90 * 24 * time.Hour}, stays: true, text: "90d"},
		"size flag, no section":           {file: "", flags: tsdb.Options{RetentionBytes: 1 << 30}, stays: true, text: "1GiB"},
		"a null section is the default":   {file: "storage: {tsdb: {retention: }}", stays: false, text: "15d"},
		"no flag, no section":             {file: "", stays: false, text: "15d"},
		"long flag, file is shorter":      {file: "storage: {tsdb: {retention: {time: 7d}}}", flags: tsdb.Options{Retention: 365 * 24 * time.Hour}, stays: false, text: "1w"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			old, recent := oldAndNew(t, dir)
			file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n"+tt.file+"\n")
			change := func(o *app.ServeOptions) {
				o.ConfigFile, o.Web.EnableLifecycle = file, true
				o.Store = tt.flags
				o.Store.Dir = dir
			}
			check := func(when string) {
				if !blockExists(t, dir, recent) {
					t.Errorf("%s: the recent block was deleted", when)
				}
				if got := blockExists(t, dir, old); got != tt.stays {
					t.Errorf("%s: the old block exists: %t, want %t", when, got, tt.stays)
				}
			}
			for _, when := range []string{"first start", "second start"} {
				s := startServe(t, change)
				check(when)
				_, info := s.get("/api/v1/status/runtimeinfo")
				if !strings.Contains(info, `"storageRetention":"`+tt.text+`"`) {
					t.Errorf("want a retention of %q in %s", tt.text, info)
				}
				s.mustReload()
				_, after := s.get("/api/v1/status/runtimeinfo")
				if !strings.Contains(after, `"storageRetention":"`+tt.text+`"`) {
					t.Errorf("after a reload: want a retention of %q in %s", tt.text, after)
				}
				check("after a reload")
				noError(t, s.stop())
			}
		})
	}
}

func TestServe_PrometheusFolderKeepsItsBlocks(t *testing.T) {
	program, dir := binary(t), t.TempDir()
	old, recent := oldAndNew(t, dir)
	for _, folder := range []string{"wal", "chunks_head"} {
		noError(t, os.Mkdir(filepath.Join(dir, folder), 0o777))
	}
	writeFile(t, filepath.Join(dir, "queries.active"), strings.Repeat("\x00", 20001))
	writeFile(t, filepath.Join(dir, "lock"), "")
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), `
global: {scrape_interval: 15s, external_labels: {cluster: eu}}
alerting: {alertmanagers: [{static_configs: [{targets: ['127.0.0.1:1']}]}]}
rule_files: [rules.yml]
scrape_configs: [{job_name: none, static_configs: [{targets: ['127.0.0.1:1']}]}]
storage: {tsdb: {retention: {time: 1y, size: 10GB}, out_of_order_time_window: 30m}, exemplars: {max_exemplars: 1000}}
`)
	for range 2 {
		p := startProcess(t, program, "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+dir, "--config.file="+file)
		if !blockExists(t, dir, old) || !blockExists(t, dir, recent) {
			t.Errorf("a block was deleted:\n%s", p.log)
		}
		_, metrics := p.get("/metrics")
		for _, want := range []string{"prometheus_tsdb_retention_limit_seconds 3.1536e+07", "prometheus_tsdb_retention_limit_bytes 1.073741824e+10", "prometheus_tsdb_exemplar_max_exemplars 1000"} {
			if !strings.Contains(metrics, want+"\n") {
				t.Errorf("%q is not among the metrics", want)
			}
		}
		noError(t, p.signal(os.Interrupt))
	}
}

// The default of --storage.tsdb.max-block-duration is a tenth of the retention. Shipping
// refuses a duration that compacts blocks, and its error names the duration.
func TestServe_MaxBlockDurationFollowsTheRetentionOfTheFile(t *testing.T) {
	bucket := "type: FILESYSTEM\nconfig: {directory: " + t.TempDir() + "}\n"
	for retention, want := range map[string]string{"20h": "", "3d": "7h12m0s", "1y": "744h0m0s", "0s": "744h0m0s"} {
		file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
			"global: {external_labels: {cluster: eu}}\nstorage: {tsdb: {retention: {time: "+retention+"}}}\n")
		options := func(o *app.ServeOptions) { o.ConfigFile, o.Ship.Bucket = file, bucket }
		if want == "" {
			_ = startServe(t, options).stop()
			continue
		}
		if err := newServe(t, options); err == nil || !strings.Contains(err.Error(), "--storage.tsdb.max-block-duration="+want+" ") {
			t.Errorf("a retention of %s: got %v, want blocks of %s", retention, err, want)
		}
	}
}

func TestServe_MetricsAreServedIfTheProfileStoreDoesNotOpen(t *testing.T) {
	dir, log := t.TempDir(), &lockedBuffer{}
	blocked := writeFile(t, filepath.Join(dir, "profiles"), "not a folder")
	config := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "scrape_configs: [{job_name: a, static_configs: [{targets: ['127.0.0.1:1']}]}]\n")
	change := func(o *app.ServeOptions) {
		o.Store.Dir = dir
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
		o.GRPC.ListenAddress = "127.0.0.1:0"
		o.Web.EnableLifecycle = true
		o.Profiles.Self, o.Profiles.Every, o.Profiles.ConfigFile = true, 100*time.Millisecond, config
	}
	s := startServe(t, change)
	s.waitValue("up", "1")
	reason := filepath.Join(dir, "profiles")
	for _, path := range []string{"/ingest?name=a&from=now-1m", "/push.v1.PusherService/Push", "/querier.v1.QuerierService/ProfileTypes"} {
		if code, body := s.post(path, "application/json", "{}"); code != http.StatusServiceUnavailable || !strings.Contains(body, reason) {
			t.Errorf("POST %s: %d %s", path, code, body)
		}
	}
	// Prometheus' API maps its error type "unavailable" to 500.
	s.expect("/api/v1/exemplar/flamegraph?profile_id=7c9e6679-7425-40de-944b-e07fc1f90ae7&time=1", http.StatusInternalServerError, reason)
	s.expect("/-/ready", http.StatusOK, "Profiles are not available", reason)
	s.expect("/metrics", 0, "\nferula_profiles_available 0\n")
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, reason) {
		t.Errorf("no error with %q in the log: %s", reason, text)
	}
	conn := try(grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))).must(t)
	defer conn.Close()
	if err := conn.Invoke(context.Background(), "/querier.v1.QuerierService/ProfileTypes", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC: %v", err)
	}
	if code, body := s.reload(); code != http.StatusOK {
		t.Errorf("reload: %d %s", code, body)
	}
	noError(t, s.stop())
	noError(t, os.Remove(blocked))
	s = startServe(t, change)
	if code, body := s.get("/-/ready"); code != http.StatusOK || strings.Contains(body, "Profiles") {
		t.Errorf("readiness after the store can be opened: %d %s", code, body)
	}
	s.expect("/metrics", 0, "\nferula_profiles_available 1\n")
	eventually(t, 60*time.Second, "own profiles", func() bool {
		now := time.Now().UnixMilli()
		_, body := s.post("/querier.v1.QuerierService/LabelNames", "application/json", fmt.Sprintf(`{"start":"%d","end":"%d"}`, now-60_000, now+60_000))
		return strings.Contains(body, "service_name")
	})
}

func TestServe_TSDBThatDoesNotOpenStopsTheServerAndKeepsTheProfiles(t *testing.T) {
	dir := t.TempDir()
	first := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	now := time.Now().UnixMilli()
	if code, body := first.folded(fmt.Sprintf("name=stored&from=%d&until=now", now/1000-10), "main;work 17\n"); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	noError(t, first.stop())
	wal := filepath.Join(dir, "wal")
	noError(t, os.Rename(wal, wal+".away"))
	writeFile(t, wal, "not a folder")
	serve := try(app.NewServe(app.ServeOptions{Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: dir}, Logger: slog.New(slog.DiscardHandler)})).must(t)
	if err := serve.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "open database in "+dir) {
		t.Fatalf("the server stopped with %v", err)
	}
	noError(t, os.Remove(wal))
	noError(t, os.Rename(wal+".away", wal))
	again := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	if _, body := again.post("/querier.v1.QuerierService/LabelValues", "application/json", fmt.Sprintf(`{"name":"service_name","start":"%d","end":"%d"}`, now-60_000, now+60_000)); !strings.Contains(body, "stored") {
		t.Error(body)
	}
}

// TestServe_ProfileFolderOfAnotherProcess starts a second server on the directory of
// profiles of another. They must not share it, because each deletes log segments whose
// content only the other one has in memory.
func TestServe_ProfileFolderOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	change := func(o *app.ServeOptions) { o.Profiles.Store.Dir = dir }
	first := startServe(t, change)
	second := startServe(t, change)
	second.waitValue("up", "1")
	if code, body := second.post("/ingest?name=a&from=now-1m", "text/plain", "main;work 17\n"); code != http.StatusServiceUnavailable || !strings.Contains(body, "another process") || !strings.Contains(body, dir) {
		t.Errorf("push to the second server: %d %s", code, body)
	}
	second.expect("/-/ready", http.StatusOK, "another process")
	if code, body := first.post("/ingest?name=a&from=now-1m", "text/plain", "main;work 17\n"); code != http.StatusOK {
		t.Errorf("push to the first server: %d %s", code, body)
	}
	for _, s := range []*server{second, first} {
		noError(t, s.stop())
	}
	third := startServe(t, change)
	if code, body := third.get("/-/ready"); code != http.StatusOK || strings.Contains(body, "Profiles") {
		t.Errorf("readiness after the others have stopped: %d %s", code, body)
	}
}

// smallDisk mounts a file system of so many bytes. Without the right to mount it skips.
func smallDisk(t *testing.T, bytes int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("mount a file system for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes a file until the disk has only left bytes.
func fill(t *testing.T, dir string, left int64) (file string) {
	t.Helper()
	file = filepath.Join(dir, "filler")
	f := try(os.Create(file)).must(t)
	defer f.Close()
	for block, err := make([]byte, 4096), error(nil); err == nil; {
		_, err = f.Write(block)
	}
	noError(t, f.Truncate(max(0, try(f.Stat()).must(t).Size()-left)))
	return file
}

// incompressible returns 256 letters that differ from name to name.
func incompressible(name string) string {
	var all []byte
	for i := range 4 {
		sum := sha256.Sum256([]byte(fmt.Sprint(name, i)))
		all = append(all, sum[:]...)
	}
	return hex.EncodeToString(all)
}

// TestServe_FullDiskRefusesAndRecovers fills the disk below the store. All acknowledged
// samples must be stored afterwards, even after the process was killed.
func TestServe_FullDiskRefusesAndRecovers(t *testing.T) {
	disk := smallDisk(t, 64<<20)
	data := filepath.Join(disk, "data")
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	args := []string{"serve", "--config.file=" + config, "--storage.tsdb.path=" + data, "--web.listen-address=127.0.0.1:0"}
	p := startProcess(t, binary(t), args...)
	begin := time.Now().Add(-30 * time.Minute).UnixMilli()
	acknowledged := map[string]int{} // samples by series
	write := func(round int, names ...string) (int, string) {
		var list []prompb.TimeSeries
		for _, name := range names {
			list = append(list, v1Series(begin+int64(round)*1000, float64(round), "__name__", "full", "series", name, "filler", incompressible(name)))
		}
		status, body, header := p.write(v1Type, "snappy", encoded(t, v1(list...)))
		if status == http.StatusNoContent {
			for _, name := range names {
				acknowledged[name]++
			}
		} else if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || strings.Contains(body, disk) || !strings.Contains(body, "no space left") {
			t.Errorf("a write to a full disk: %d %q, headers %v", status, body, header)
		}
		return status, body
	}
	profiles := 0
	push := func(round int) (int, string) {
		at := begin/1000 + int64(round)
		status, body := p.folded(fmt.Sprintf("name=full&from=%d&until=%d", at, at+1), strings.Repeat("main;work 1\n", 1)+"main;"+strings.Repeat("x", 8000)+fmt.Sprint(round)+" 1\n")
		if status == http.StatusOK {
			profiles++
		} else if status != http.StatusServiceUnavailable || strings.Contains(body, disk) || !strings.Contains(body, "no space left") {
			t.Errorf("a push to a full disk: %d %q", status, body)
		}
		return status, body
	}
	many := func(round int) (names []string) {
		for i := range 300 {
			names = append(names, fmt.Sprintf("r%d-%d", round, i))
		}
		return names
	}
	write(0, many(0)...)
	push(0)
	for round, left := range []int64{0, 4096, 40_960} {
		filler := fill(t, disk, left)
		refused := 0
		for i := range 40 { // new series and old ones, until all kinds were refused
			if status, _ := write(1+round*100+i, many(1+round)...); status != http.StatusNoContent {
				refused++
			}
			write(1+round*100+i, "r0-1", "r0-2")
			if status, _ := push(1 + round*100 + i); status != http.StatusOK {
				refused++
			}
		}
		if refused < 2 {
			t.Errorf("%d bytes left: %d requests were refused", left, refused)
		}
		noError(t, os.Remove(filler))
		eventually(t, 60*time.Second, "writes to be accepted again", func() bool {
			status, _ := write(60+round*100, many(1+round)...)
			return status == http.StatusNoContent
		})
		eventually(t, 60*time.Second, "pushes to be accepted again", func() bool {
			status, _ := push(60 + round*100)
			return status == http.StatusOK
		})
		write(61+round*100, many(1+round)...)
		p.kill()
		p = startProcess(t, binary(t), args...)
		got := map[string]string{}
		for _, s := range p.instant(`count_over_time(full[1h])`) {
			got[s.Metric["series"]] = fmt.Sprint(s.Value[1])
		}
		missing := 0
		for name, n := range acknowledged {
			if have := got[name]; have < fmt.Sprint(n) && len(have) <= len(fmt.Sprint(n)) {
				if missing++; missing < 4 {
					t.Errorf("%d bytes left: series %s has %q samples, %d were acknowledged", left, name, have, n)
				}
			}
		}
		if missing > 0 {
			t.Errorf("%d of %d series lack acknowledged samples", missing, len(acknowledged))
		}
	}
}

// TestServe_StartsOnAFullDiskOnceItHasSpace starts on a disk without any space: the process waits, not ready, instead of
// ending again and again.
func TestServe_StartsOnAFullDiskOnceItHasSpace(t *testing.T) {
	disk := smallDisk(t, 64<<20)
	args := []string{"serve", "--storage.tsdb.path=" + filepath.Join(disk, "data"), "--web.listen-address=127.0.0.1:0"}
	p := startProcess(t, binary(t), args...)
	at := time.Now().Add(-30 * time.Minute).UnixMilli()
	for i := range int64(500) { // some chunks of the series are full: the replay writes them
		p.must(v1Type, encoded(t, v1(v1Series(at+i*1000, float64(i), "__name__", "full"))))
	}
	p.kill()
	noError(t, os.RemoveAll(filepath.Join(disk, "data", "chunks_head")))
	filler := fill(t, disk, 0)
	waiting := launch(t, binary(t), append(args, "--grpc-address=127.0.0.1:0")...)
	waiting.logged(t, regexp.MustCompile("The start waits for free space on the disk"))
	select {
	case <-waiting.ended:
		t.Fatalf("the process ended: %v", waiting.err)
	default:
	}
	noError(t, os.Remove(filler))
	waiting.server = &server{t: t, base: waiting.logged(t, readyURL)}
	if got := waiting.instant(`count_over_time(full[1h])`); len(got) != 1 || fmt.Sprint(got[0].Value[1]) != "500" {
		t.Errorf("after the start: %v", got)
	}
	noError(t, waiting.signal(syscall.SIGTERM))
}

// TestServe_ProfilesLeaveSpaceForSamples pushes profiles until the disk has no space for more.
func TestServe_ProfilesLeaveSpaceForSamples(t *testing.T) {
	disk := smallDisk(t, 32<<20)
	p := startProcess(t, binary(t), "serve", "--storage.tsdb.path="+filepath.Join(disk, "data"), "--web.listen-address=127.0.0.1:0", "--no-profiles.self")
	begin, status, body := time.Now().Add(-10*time.Minute).Unix(), 0, ""
	for round := range 1000 {
		var stacks strings.Builder
		for i := range 300 {
			fmt.Fprintf(&stacks, "main;%s 1\n", incompressible(fmt.Sprint(round, "/", i)))
		}
		if status, body = p.folded(fmt.Sprintf("name=fill%d&from=%d&until=%d", round%20, begin+int64(round%500), begin+int64(round%500)+1), stacks.String()); status != http.StatusOK {
			break
		}
	}
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "--storage.tsdb.min-free") || strings.Contains(body, disk) {
		t.Errorf("the last push: %d %s", status, body)
	}
	at := time.Now().UnixMilli()
	for i := range int64(100) {
		p.must(v1Type, encoded(t, v1(v1Series(at+i, 1, "__name__", "still_accepted"))))
	}
	noError(t, p.signal(syscall.SIGTERM))
}

// process is a running program.
type process struct {
	*server
	cmd   *exec.Cmd
	ended chan struct{} // closed once it has ended, with err
	err   error
	log   *logTail      // what it prints
	line  chan struct{} // has an element if the log has a new line
}

type logTail struct {
	mu    sync.Mutex
	lines []string
}

func (l *logTail) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

var readyURL = regexp.MustCompile(`msg=Ready url=(https?://[^ /]+)`)

// startProcess runs the binary and waits until its log reports that it is ready, with its
// URL. `ferula serve` gets a free gRPC port unless args set one.
func startProcess(t *testing.T, path string, args ...string) *process {
	t.Helper()
	isGRPCFlag := func(arg string) bool { return strings.HasPrefix(arg, "--grpc-address") }
	if args[0] == "serve" && !slices.ContainsFunc(args, isGRPCFlag) {
		args = append(slices.Clone(args), "--grpc-address=127.0.0.1:0")
	}
	p := launch(t, path, args...)
	p.server = &server{t: t, base: p.logged(t, readyURL)}
	return p
}

// launch runs the binary. It does not wait until it is ready.
func launch(t *testing.T, path string, args ...string) *process {
	t.Helper()
	return launchCommand(t, exec.Command(path, args...))
}

// launchCommand runs a command until the test ends. If the test fails, its log has what the command has printed.
func launchCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{}), log: &logTail{}, line: make(chan struct{}, 1)}
	read, write, err := os.Pipe()
	noError(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	noError(t, cmd.Start())
	noError(t, write.Close())
	go func() {
		defer close(p.ended)
		defer read.Close()
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			p.log.add(lines.Text())
			select {
			case p.line <- struct{}{}:
			default:
			}
		}
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.signal(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("output of %s %q:\n%s", filepath.Base(cmd.Path), cmd.Args[1:min(2, len(cmd.Args))], p.log)
		}
	})
	return p
}

// logged waits until the log has a line that matches, and returns the first group of it.
func (p *process) logged(t *testing.T, line *regexp.Regexp) string {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		if m := line.FindStringSubmatch(p.log.String()); m != nil {
			return m[min(1, len(m)-1)]
		}
		select {
		case <-p.line:
		case <-timeout:
			t.Fatalf("no line %s in the log", line)
		}
	}
}

// signal sends a signal and returns the error with which the process ends.
func (p *process) signal(sig os.Signal) error {
	select {
	case <-p.ended:
		return p.err
	default:
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return p.err
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return errors.New("the process did not end")
	}
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	if err := p.signal(syscall.SIGKILL); err == nil {
		p.t.Errorf("%s was not killed", p.cmd.Path)
	}
}

// writeUntilGone writes samples of one series, one per request, until the server no
// longer responds. It returns the number of acknowledged samples. It calls first after
// the first acknowledgement.
func (p *process) writeUntilGone(t *testing.T, writer int, fromMS int64, first func()) int {
	client := &http.Client{Timeout: 10 * time.Second}
	for n := 0; ; n++ {
		body := encoded(t, v1(v1Series(fromMS+int64(n), float64(n), "__name__", "acknowledged", "writer", fmt.Sprint(writer))))
		req, err := http.NewRequest(http.MethodPost, p.base+"/api/v1/write", strings.NewReader(string(body)))
		if err != nil {
			t.Error(err)
			return n
		}
		req.Header.Set("Content-Type", v1Type)
		req.Header.Set("Content-Encoding", "snappy")
		resp, err := client.Do(req)
		if err != nil {
			return n
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			t.Errorf("writer %d: status %d", writer, resp.StatusCode)
			return n
		}
		if n == 0 {
			first()
		}
	}
}

func TestServe_KillLosesNoAcknowledgedSample(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	path, dir := binary(t), t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: []\n")
	args := []string{"serve", "--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0"}
	total := map[int]int{}
	const writers = 4
	// Each round writes into another minute of the past, one sample per millisecond,
	// so that no sample is in the future or in the minute of the next round.
	start := time.Now().Add(-20 * time.Minute).UnixMilli()
	for round := range rounds {
		p := startProcess(t, path, args...)
		checkAcknowledged(t, p, total, round)
		fromMS := start + int64(round)*60_000
		counts := make([]int, writers)
		var wg, begun sync.WaitGroup
		begun.Add(writers)
		for w := range writers {
			first := sync.OnceFunc(begun.Done)
			wg.Go(func() {
				defer first()
				counts[w] = p.writeUntilGone(t, w, fromMS, first)
			})
		}
		begun.Wait()
		time.Sleep(time.Duration(50+round*20) * time.Millisecond)
		p.kill()
		wg.Wait()
		for w, n := range counts {
			total[w] += n
			if n == 0 {
				t.Errorf("round %d: writer %d wrote nothing before the kill", round, w)
			}
		}
	}
	p := startProcess(t, path, args...)
	checkAcknowledged(t, p, total, rounds)
	noError(t, p.signal(syscall.SIGTERM))
}

// checkAcknowledged counts the stored samples of each writer. All acknowledged ones must
// be stored. For each kill one more may be stored, whose response was lost.
func checkAcknowledged(t *testing.T, p *process, want map[int]int, kills int) {
	t.Helper()
	for w, n := range want {
		got := p.value(fmt.Sprintf(`count_over_time(acknowledged{writer="%d"}[1h])`, w))
		var found int
		if _, err := fmt.Sscan(got, &found); err != nil || found < n || found > n+kills {
			t.Fatalf("after %d kills writer %d has %q samples, %d were acknowledged", kills, w, got, n)
		}
	}
}

func TestServe_SIGHUPReloadsAndSIGTERMStops(t *testing.T) {
	path, dir := binary(t), t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: [{job_name: before}]\n")
	p := startProcess(t, path, "serve", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	writeFile(t, config, "scrape_configs: [{job_name: after}]\n")
	noError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.waitFor("/api/v1/status/config", "job_name: after")
	noError(t, p.signal(syscall.SIGTERM))
}

// refusedBy runs a command that is expected to end with an error by itself, and returns its
// output.
func refusedBy(t *testing.T, path, dir string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Fatalf("%v: accepted (%v): %s", args, err, out)
	}
	return string(out)
}

// commandOf returns a command whose process is killed when the test ends.
func commandOf(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(path, args...)
	t.Cleanup(func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	})
	return cmd
}
