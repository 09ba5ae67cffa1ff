package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

func TestRead_FolderIncludesOutOfOrderSamples(t *testing.T) {
	t.Parallel()
	path, dir := binary(t), t.TempDir()
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "storage: {tsdb: {out_of_order_time_window: 24h}}\nscrape_configs: []\n")
	configure := func(o *app.ServeOptions) { o.Store, o.ConfigFile = tsdb.Options{Dir: dir}, config }
	s := startServe(t, configure)
	start, end := writeReadable(t, 8, s)
	// A compaction of the head would write the out-of-order samples into a block too. None is due for a head of three hours.
	eventually(t, 60*time.Second, "the head to become blocks", func() bool {
		blocks, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
		head := s.metric("prometheus_tsdb_head_max_time") - s.metric("prometheus_tsdb_head_min_time")
		return err == nil && len(blocks) >= 2 && head <= float64(3*time.Hour/time.Millisecond)
	})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = startServe(t, configure)
	// One series that exists already, and a new one.
	late := []prompb.TimeSeries{
		v1Series(0, 0, "__name__", "read_0_total", "i", "0", "job", "read", "text", "plain"),
		v1Series(0, 0, "__name__", "read_late", "job", "read"),
	}
	for i := range late {
		late[i].Samples = nil
		for n := range int64(10) {
			late[i].Samples = append(late[i].Samples, prompb.Sample{Timestamp: (start+3600+n*60)*1000 + 30_000, Value: float64(n)})
		}
	}
	before, _ := s.promQLTotals(start, end)
	s.writeAll([][]byte{encoded(t, v1(late...))})
	wantCount, wantSum := s.promQLTotals(start, end)
	if wantCount != before+20 {
		t.Fatalf("%d samples, %d before the out-of-order ones", wantCount, before)
	}
	logged, err := filepath.Glob(filepath.Join(dir, "wbl", "0*"))
	if err != nil || len(logged) == 0 {
		t.Fatal("the out-of-order samples are not in the WBL", err)
	}
	if info, err := os.Stat(logged[len(logged)-1]); err != nil || info.Size() == 0 {
		t.Fatal("the out-of-order samples are not in the WBL", err)
	}
	out := t.TempDir()
	for _, serving := range []bool{true, false} {
		for _, name := range []string{"all.csv", "all.jsonl", "all.om", "all.parquet"} {
			remote, local := filepath.Join(out, "remote-"+name), filepath.Join(out, fmt.Sprint("local-", serving, "-", name))
			if serving {
				mustRead(t, path, readArgs(s.base, start, end, remote)...)
			}
			mustRead(t, path, localArgs(dir, start, end, local)...)
			want, errWant := os.ReadFile(remote)
			got, errGot := os.ReadFile(local)
			if errWant != nil || errGot != nil || !bytes.Equal(want, got) {
				t.Errorf("serving %t, %s: %d bytes from the folder, %d remotely, %v, %v", serving, name, len(got), len(want), errWant, errGot)
			}
		}
		blocks, again := filepath.Join(out, fmt.Sprint("blocks-", serving)), filepath.Join(out, fmt.Sprint("again-", serving, ".csv"))
		mustRead(t, path, localArgs(dir, start, end, blocks)...)
		mustRead(t, path, localArgs(blocks, start, end, again)...)
		if count, sum := totals(t, again); count != wantCount || sum != wantSum {
			t.Errorf("serving %t, blocks: %d samples of sum %g, want %d of %g", serving, count, sum, wantCount, wantSum)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
