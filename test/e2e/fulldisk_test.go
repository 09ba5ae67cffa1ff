package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

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
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Truncate(max(0, info.Size()-left))
	}
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		eventually(t, 60*time.Second, "writes to be accepted again", func() bool {
			status, _ := write(60+round*100, many(1+round)...)
			return status == http.StatusNoContent
		})
		eventually(t, 60*time.Second, "pushes to be accepted again", func() bool {
			status, _ := push(60 + round*100)
			return status == http.StatusOK
		})
		write(61+round*100, many(1+round)...)
		if err := p.signal(syscall.SIGKILL); err == nil {
			t.Error("the process was not killed")
		}
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
		if status, body, _ := p.write(v1Type, "snappy", encoded(t, v1(v1Series(at+i*1000, float64(i), "__name__", "full")))); status != http.StatusNoContent {
			t.Fatalf("sample %d: %d %s", i, status, body)
		}
	}
	if err := p.signal(syscall.SIGKILL); err == nil {
		t.Error("the process was not killed")
	}
	if err := os.RemoveAll(filepath.Join(disk, "data", "chunks_head")); err != nil {
		t.Fatal(err)
	}
	filler := fill(t, disk, 0)
	waiting := launch(t, binary(t), append(args, "--grpc-address=127.0.0.1:0")...)
	waiting.logged(t, regexp.MustCompile("The start waits for free space on the disk"))
	select {
	case err := <-waiting.done:
		t.Fatalf("the process ended: %v\n%s", err, waiting.log.String())
	default:
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	waiting.server = &server{t: t, base: waiting.logged(t, readyURL)}
	if got := waiting.instant(`count_over_time(full[1h])`); len(got) != 1 || fmt.Sprint(got[0].Value[1]) != "500" {
		t.Errorf("after the start: %v", got)
	}
	if err := waiting.signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
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
		if status, body, _ := p.write(v1Type, "snappy", encoded(t, v1(v1Series(at+i, 1, "__name__", "still_accepted")))); status != http.StatusNoContent {
			t.Fatalf("sample %d: %d %s", i, status, body)
		}
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
