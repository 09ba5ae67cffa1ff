package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

func TestSync_StatesThatNoBlockHasAnyMoreAreZero(t *testing.T) {
	bucket, dir := newBucket(t)
	writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "kept"})
	broken := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "broken"})
	write(t, filepath.Join(dir, broken, "meta.json"), `{"ulid":`)
	set := metrics.NewSet()
	s := openStore(t, bucket, Options{Metrics: set})
	for _, want := range []string{"1", "0"} {
		var page strings.Builder
		set.WritePrometheus(&page)
		if line := `thanos_blocks_meta_synced{state="corrupted-meta-json"} ` + want + "\n"; !strings.Contains(page.String(), line) {
			t.Errorf("no %q in %s", line, page.String())
		}
		if err := os.RemoveAll(filepath.Join(dir, broken)); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A block whose meta.json had the size of another index is served once the meta.json is
// corrected.
func TestSync_CorrectedMetaIsUsedWithoutARestart(t *testing.T) {
	bucket, dir := newBucket(t)
	id := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "a"})
	info, err := os.Stat(filepath.Join(dir, id, "index"))
	if err != nil {
		t.Fatal(err)
	}
	size := func(bytes int64) {
		editMeta(t, dir, id, func(meta map[string]any) {
			meta["thanos"].(map[string]any)["files"] = []map[string]any{{"rel_path": "index", "size_bytes": bytes}}
		})
	}
	size(info.Size() + 100)
	s := openStore(t, bucket, Options{})
	r := storeapi.SeriesRequest{MaxMS: hourMS, Matchers: match(t, "__name__=up")}
	if got, warnings := s.all(t, r); len(got) != 0 || len(warnings) != 1 {
		t.Fatalf("%d series, warnings %q", len(got), warnings)
	}
	size(info.Size())
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, warnings := s.all(t, r)
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	same(t, "after the correction", got, expected(t, dir, []string{id}, map[string]string{"block": "a"}, r))
}

// A start takes the block from the snapshot, although its deletion has begun meanwhile.
func TestSync_BlockThatIsHalfDeletedIsDroppedAfterTheFirstWarning(t *testing.T) {
	bucket, dir := newBucket(t)
	id := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "a"})
	before, local := t.TempDir(), t.TempDir()
	r := storeapi.SeriesRequest{MaxMS: hourMS, Matchers: match(t, "__name__=up")}
	if got, warnings := openStore(t, bucket, Options{Dir: before}).all(t, r); len(got) != 3 || len(warnings) != 0 {
		t.Fatal(got, warnings)
	}
	snapshot, err := os.ReadFile(filepath.Join(before, "blocks.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(local, "blocks.snapshot"), string(snapshot))
	remove(t, dir, id, "meta.json")
	remove(t, dir, id, "chunks/000001")
	s := openStore(t, bucket, Options{Dir: local})
	if got, warnings := s.all(t, r); len(got) != 0 || len(warnings) != 1 || !strings.Contains(warnings[0], id) {
		t.Errorf("%d series, warnings %q", len(got), warnings)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, warnings := s.all(t, r); len(got) != 0 || len(warnings) != 0 || len(s.Blocks()) != 0 {
		t.Errorf("after the next list: %d series, warnings %q, %d blocks", len(got), warnings, len(s.Blocks()))
	}
}
