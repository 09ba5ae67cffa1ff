package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startPeerOver runs a real Prometheus on a data directory.
func startPeerOver(t *testing.T, data string, more ...string) *server {
	t.Helper()
	path := peerBinary(t, "prometheus")
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, append([]string{"--config.file=" + config, "--storage.tsdb.path=" + data,
		"--web.listen-address=" + address, "--web.enable-remote-write-receiver", "--log.level=warn"}, more...)...)
	return &server{t: t, base: "http://" + address}
}

func TestPeerPrometheus_ExportEqualsFerulaServe(t *testing.T) {
	prometheus := startPeerOver(t, filepath.Join(t.TempDir(), "data"))
	ours, path := startServe(t, idle(t)), binary(t)
	start, end := writeReadable(t, 5, ours, prometheus)
	var files [2][]byte
	for i, s := range []*server{ours, prometheus} {
		out := filepath.Join(t.TempDir(), "out.csv")
		mustRead(t, path, readArgs(s.base, start, end, out, "--match=read_1_total")...)
		wantCount, wantSum := s.promQLTotals(start, end)
		if count, sum := totals(t, out); count != wantCount || sum != wantSum || count != 12*301 {
			t.Errorf("%s: %d samples of sum %g, PromQL has %d of %g", s.base, count, sum, wantCount, wantSum)
		}
		var err error
		if files[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Errorf("%d bytes from ferula serve, %d from Prometheus", len(files[0]), len(files[1]))
	}
}

func TestPeerPrometheus_ServesExportedBlocks(t *testing.T) {
	promtool := peerBinary(t, "promtool")
	s, path := startServe(t, idle(t)), binary(t)
	start, end := writeReadable(t, 5, s)
	wantCount, wantSum := s.promQLTotals(start, end)
	blocks := filepath.Join(t.TempDir(), "blocks")
	mustRead(t, path, readArgs(s.base, start, end, blocks)...)
	entries, err := os.ReadDir(blocks)
	if err != nil || len(entries) < 3 {
		t.Fatalf("%d blocks, %v", len(entries), err)
	}
	for _, entry := range entries {
		if out, err := exec.Command(promtool, "tsdb", "analyze", blocks, entry.Name()).CombinedOutput(); err != nil || !strings.Contains(string(out), "Total Series: 12") {
			t.Errorf("promtool tsdb analyze %s: %v\n%s", entry.Name(), err, out)
		}
	}
	served := startPeerOver(t, blocks, "--storage.tsdb.retention.time=10y")
	if count, sum := served.promQLTotals(start, end); count != wantCount || sum != wantSum {
		t.Errorf("Prometheus has %d samples of sum %g of the blocks, want %d of %g", count, sum, wantCount, wantSum)
	}
}

func TestPeerPromtool_CreatesBlocksFromExportedOpenMetrics(t *testing.T) {
	promtool := peerBinary(t, "promtool")
	s, path := startServe(t, idle(t)), binary(t)
	start, end := writeReadable(t, 5, s)
	dir := t.TempDir()
	want, text, blocks, got := filepath.Join(dir, "want.csv"), filepath.Join(dir, "out.om"), filepath.Join(dir, "blocks"), filepath.Join(dir, "got.csv")
	mustRead(t, path, readArgs(s.base, start, end, want)...)
	mustRead(t, path, readArgs(s.base, start, end, text)...)
	if out, err := exec.Command(promtool, "tsdb", "create-blocks-from", "openmetrics", text, blocks).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	mustRead(t, path, localArgs(blocks, start, end, got)...)
	a, errA := os.ReadFile(want)
	b, errB := os.ReadFile(got)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("%d bytes of CSV from OpenMetrics, %d directly, %v, %v", len(b), len(a), errA, errB)
	}
}

// frames is a Python program that reads a Parquet file with each library that the
// documents name, and prints counts and sums.
const frames = `
import sys, duckdb, pandas, polars
path = sys.argv[1]
row = duckdb.sql(f"select count(*), sum(value), count(distinct labels), min(epoch_ms(timestamp)), max(epoch_ms(timestamp)), count(distinct name), count(histogram) from '{path}'").fetchall()[0]
print("duckdb", *row)
print("duckdb label", duckdb.sql(f"select count(*) from '{path}' where labels->>'text' = 'ümläut, 日本'").fetchall()[0][0])
d = pandas.read_parquet(path)
ms = d.timestamp.astype("datetime64[ms, UTC]").astype("int64")
print("pandas", len(d), d.value.sum(), d.labels.nunique(), ms.min(), ms.max(), d.name.nunique(), d.histogram.notna().sum())
p = polars.read_parquet(path)
print("polars", p.height, p["value"].sum(), p["labels"].n_unique(), p["timestamp"].dt.epoch("ms").min(), p["timestamp"].dt.epoch("ms").max(), p["name"].n_unique(), p["histogram"].count())
`

func TestPeerLibraries_ReadExportedParquet(t *testing.T) {
	python := os.Getenv("FERULA_TEST_PYTHON")
	if python == "" || exec.Command(python, "-c", "import duckdb, pandas, polars, pyarrow").Run() != nil {
		t.Skip("needs FERULA_TEST_PYTHON, a python with duckdb, pandas, polars and pyarrow: run .ci/run")
	}
	s, path := startServe(t, idle(t)), binary(t)
	start, end := writeReadable(t, 5, s)
	count, sum := s.promQLTotals(start, end)
	out := filepath.Join(t.TempDir(), "out.parquet")
	mustRead(t, path, readArgs(s.base, start, end, out)...)
	output, err := exec.Command(python, "-c", frames, out).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	rest := fmt.Sprintf("%d %.1f 12 %d %d 3 0\n", count, sum, start*1000, (end-1)*1000+11)
	want := "duckdb " + rest + "duckdb label 903\npandas " + rest + "polars " + rest
	if string(output) != want {
		t.Errorf("the libraries print\n%swant\n%s", output, want)
	}
}

func TestPeerThanosSidecar_ExportEqualsItsPrometheus(t *testing.T) {
	prometheus, store := queriedSidecar(t) // with external labels
	path := binary(t)
	start, end := writeReadable(t, 5, prometheus)
	dir := t.TempDir()
	remote, sidecar := filepath.Join(dir, "remote.csv"), filepath.Join(dir, "store.csv")
	mustRead(t, path, readArgs(prometheus.base, start, end, remote)...)
	eventually(t, 60*time.Second, "the sidecar to return samples", func() bool {
		code, stderr, _ := runRead(t, path, storeArgs(store, start, end, sidecar)...)
		return code == 0 && strings.Contains(stderr, "3,612 samples of 12 series")
	})
	a, errA := os.ReadFile(remote)
	b, errB := os.ReadFile(sidecar)
	if errA != nil || errB != nil || !bytes.Equal(a, b) || !strings.Contains(string(a), `""cluster"":""eu""`) {
		t.Errorf("%d bytes from Prometheus, %d from the sidecar, %v, %v", len(a), len(b), errA, errB)
	}
}
