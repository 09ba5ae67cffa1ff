package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

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
	s, err := store.New(store.Options{Dir: dir, Retention: -1}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
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
	if err := s.Append(ctx, "t", pushed); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
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
