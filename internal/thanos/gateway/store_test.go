package gateway

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb/index"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var selectors = [][]string{
	{"__name__=up"}, {"__name__=requests_total"}, {"__name__=~.+"}, {"__name__=up", "job=job-1"}, {"job=job-1", "instance=host-0007"},
	{"__name__=up", "instance=~host-00.[13579]"}, {"__name__=up", "instance!=host-0003"}, {"instance=~host-0001|host-0004|host-9999"},
	{"instance!~host-0.*", "job=job-0"}, {"job!="}, {"long="}, {"long=", "__name__=requests_total"}, {"__name__=up", "nothing="}, {"nothing!="},
	{"job=nothing"}, {"__name__=up", "job!~job-1|job-2"}, {"job=~.*", "__name__=up"}, {"__name__!~up|requests_total"}, {"long=~x{100,}"},
	{"instance!=host-0001", "instance!=host-0002", "job!=job-0"}, {"job=~job-.", "instance=~.+5", "__name__=requests_total"},
}

func TestStore_SelectsWhatPrometheusReadersSelect(t *testing.T) {
	bucket, dir := newBucket(t)
	external := map[string]string{"cluster": "eu", "zzz": "last"}
	ids := []string{
		writeBlock(t, dir, 0, 2*hourMS, 100, external), writeBlock(t, dir, 2*hourMS, 4*hourMS, 60, external),
		writeBlock(t, dir, 3*hourMS, 5*hourMS, 30, external), // overlaps
	}
	for _, cacheBytes := range []int64{1, 64 << 20} { // 1: the least possible
		s := openStore(t, bucket, Options{CacheBytes: cacheBytes, ReadsMax: 2})
		for _, selector := range selectors {
			for _, span := range [][2]int64{{0, 5 * hourMS}, {hourMS, hourMS + 1}, {2 * hourMS, 2 * hourMS}, {2*hourMS + 5_000_000, 4 * hourMS}, {6 * hourMS, 7 * hourMS}} {
				for _, labelsOnly := range []bool{false, true} {
					r := storeapi.SeriesRequest{MinMS: span[0], MaxMS: span[1], Matchers: match(t, selector...), SkipChunks: labelsOnly}
					got, warnings := s.all(t, r)
					if len(warnings) > 0 {
						t.Fatal(warnings)
					}
					same(t, fmt.Sprint(selector, span, labelsOnly, cacheBytes), got, expected(t, dir, ids, external, r))
					if t.Failed() {
						return
					}
				}
			}
		}
	}
}

func TestStore_ReplicaLabelsAreRemovedAndExternalLabelsReplaceOwn(t *testing.T) {
	bucket, dir := newBucket(t)
	a := writeBlock(t, dir, 0, hourMS, 20, map[string]string{"replica": "a", "job": "outer"})
	b := writeBlock(t, dir, 0, hourMS, 20, map[string]string{"replica": "b", "job": "outer"})
	s := openStore(t, bucket, Options{})
	r := storeapi.SeriesRequest{MaxMS: hourMS, Matchers: match(t, "__name__=up"), WithoutReplicaLabels: []string{"replica"}}
	got, _ := s.all(t, r)
	same(t, "without replica", got, expected(t, dir, []string{a, b}, map[string]string{"job": "outer"}, r))
	r.Matchers = match(t, "__name__=up", "replica=b", "job=outer")
	r.WithoutReplicaLabels = nil
	got, _ = s.all(t, r)
	want := storeapi.SeriesRequest{MaxMS: hourMS, Matchers: match(t, "__name__=up")}
	same(t, "one replica", got, expected(t, dir, []string{b}, map[string]string{"job": "outer", "replica": "b"}, want))
	r.Matchers = match(t, "__name__=up", "replica=c")
	if got, _ = s.all(t, r); len(got) != 0 {
		t.Errorf("%d series of a replica that is not there", len(got))
	}
}

// The blocks of a request share its memory for sorting.
func TestStore_SortingIsLimitedPerRequest(t *testing.T) {
	bucket, dir := newBucket(t)
	for i := range 3 {
		at := int64(i) * hourMS
		writeBlock(t, dir, at, at+hourMS, 20, map[string]string{"instance": "external"})
	}
	for _, tt := range []struct {
		bytesMax int
		maxMS    int64
		want     error
	}{{40_000, hourMS - 1, nil}, {40_000, 3*hourMS - 1, series.ErrSortLimit}, {300_000, 3*hourMS - 1, nil}} {
		s := openStore(t, bucket, Options{})
		selection, err := s.Select(t.Context(), storeapi.SeriesRequest{MaxMS: tt.maxMS, SortBytesMax: tt.bytesMax, Matchers: match(t, "__name__=~.+")})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for selection.Next() {
			n++
		}
		if err := selection.Err(); !errors.Is(err, tt.want) || (err == nil) != (n > 0) {
			t.Errorf("%d bytes, up to %d: %d series, error %v, want %v", tt.bytesMax, tt.maxMS, n, err, tt.want)
		}
		if err := selection.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStore_LabelNamesAndValues(t *testing.T) {
	bucket, dir := newBucket(t)
	writeBlock(t, dir, 0, hourMS, 5, map[string]string{"cluster": "eu"})
	writeBlock(t, dir, 10*hourMS, 11*hourMS, 9, map[string]string{"cluster": "us"})
	s := openStore(t, bucket, Options{})
	for _, c := range []struct {
		what     string
		r        storeapi.LabelsRequest
		label    string // "": names
		expected string
	}{
		{"names", storeapi.LabelsRequest{MaxMS: hourMS}, "", "__name__ cluster instance job long"},
		{"names of a metric", storeapi.LabelsRequest{MaxMS: hourMS, Matchers: match(t, "__name__=up")}, "", "__name__ cluster instance job"},
		{"names without", storeapi.LabelsRequest{MaxMS: hourMS, WithoutReplicaLabels: []string{"cluster"}}, "", "__name__ instance job long"},
		{"values of external labels", storeapi.LabelsRequest{MaxMS: 20 * hourMS}, "cluster", "eu us"},
		{"values in a range", storeapi.LabelsRequest{MaxMS: 2 * hourMS}, "cluster", "eu"},
		{"values", storeapi.LabelsRequest{MaxMS: hourMS}, "instance", "host-0000 host-0001 host-0002 host-0003 host-0004"},
		{"values of some series", storeapi.LabelsRequest{MaxMS: 20 * hourMS, Matchers: match(t, "job=job-1")}, "instance", "host-0001 host-0004 host-0007"},
		{"values of one cluster", storeapi.LabelsRequest{MaxMS: 20 * hourMS, Matchers: match(t, "cluster=us", "job=job-2")}, "instance", "host-0002 host-0005 host-0008"},
		{"external values of some series", storeapi.LabelsRequest{MaxMS: 20 * hourMS, Matchers: match(t, "instance=host-0008")}, "cluster", "us"},
		{"values of a removed label", storeapi.LabelsRequest{MaxMS: 20 * hourMS, WithoutReplicaLabels: []string{"cluster"}}, "cluster", ""},
	} {
		read := func() ([]string, error) {
			if c.label == "" {
				list, _, err := s.LabelNames(t.Context(), c.r)
				return list, err
			}
			c.r.Label = c.label
			list, _, err := s.LabelValues(t.Context(), c.r)
			return list, err
		}
		if got, err := read(); err != nil || strings.Join(got, " ") != c.expected {
			t.Errorf("%s: %q, %v; want %q", c.what, got, err, c.expected)
		}
	}
}

func TestStore_BlocksThatAreMarkedPartialOrDeletedAreNotServed(t *testing.T) {
	bucket, dir := newBucket(t)
	kept := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "kept"})
	partial := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "partial"})
	marked := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "marked"})
	recent := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "recently marked"})
	broken := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "broken"})
	remove(t, dir, partial, "meta.json")
	mark := func(id string, at time.Time) {
		write(t, filepath.Join(dir, id, "deletion-mark.json"), fmt.Sprintf(`{"id":%q,"version":1,"deletion_time":%d}`, id, at.Unix()))
	}
	mark(marked, time.Now().Add(-25*time.Hour))
	mark(recent, time.Now().Add(-23*time.Hour))
	write(t, filepath.Join(dir, kept, "no-compact-mark.json"), `{}`)
	write(t, filepath.Join(dir, broken, "meta.json"), `{"ulid":`)
	local := t.TempDir()
	served := func(s *Store) (names []string) {
		sets, _ := s.Spans()
		for _, set := range sets {
			names = append(names, set.Get("block"))
		}
		return names
	}
	s := openStore(t, bucket, Options{Dir: local})
	if got := served(s); !slices.Equal(got, []string{"kept", "recently marked"}) {
		t.Errorf("served: %q", got)
	}
	if err := os.RemoveAll(filepath.Join(dir, recent)); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := served(s); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("served after a deletion: %q", got)
	}
}

func TestStore_ABlockThatCannotBeReadIsAWarningThatNamesIt(t *testing.T) {
	for what, breakIt := range map[string]func(t *testing.T, dir, id string){
		"no index":         func(t *testing.T, dir, id string) { remove(t, dir, id, "index") },
		"no chunks":        func(t *testing.T, dir, id string) { remove(t, dir, id, "chunks/000001") },
		"index cut short":  func(t *testing.T, dir, id string) { truncate(t, dir, id, "index", 0.5) },
		"chunks cut short": func(t *testing.T, dir, id string) { truncate(t, dir, id, "chunks/000001", 0.5) },
		"series flipped":   func(t *testing.T, dir, id string) { flip(t, dir, id, "index", 0.3) },
		"postings flipped": func(t *testing.T, dir, id string) { flip(t, dir, id, "index", inPostings(t, dir, id)) },
		"chunk flipped":    func(t *testing.T, dir, id string) { flip(t, dir, id, "chunks/000001", 0.5) },
	} {
		t.Run(what, func(t *testing.T) {
			bucket, dir := newBucket(t)
			good := writeBlock(t, dir, 0, hourMS, 50, map[string]string{"block": "good"})
			bad := writeBlock(t, dir, 0, hourMS, 50, map[string]string{"block": "bad"})
			s := openStore(t, bucket, Options{})
			breakIt(t, dir, bad)
			r := storeapi.SeriesRequest{MaxMS: hourMS, Matchers: match(t, "instance!=")} // reads the postings of each value
			got, warnings := s.all(t, r)
			if len(warnings) != 1 || !strings.Contains(warnings[0], bad) {
				t.Errorf("warnings: %q", warnings)
			}
			want := expected(t, dir, []string{good}, map[string]string{"block": "good"}, r)
			for key := range got {
				if !strings.Contains(key, `block="bad"`) {
					continue
				}
				delete(got, key) // of before the fault
			}
			same(t, "of the good block", got, want)
			r.AbortOnPartial = true
			selection, err := s.Select(t.Context(), r)
			if err == nil {
				for selection.Next() {
				}
				err = selection.Err()
				selection.Close()
			}
			if err == nil || !strings.Contains(err.Error(), bad) {
				t.Errorf("strict: %v", err)
			}
		})
	}
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, dir, id, file string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, id, file)); err != nil {
		t.Fatal(err)
	}
}

func truncate(t testing.TB, dir, id, file string, part float64) {
	t.Helper()
	path := filepath.Join(dir, id, file)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(float64(info.Size())*part)); err != nil {
		t.Fatal(err)
	}
}

// inPostings returns an offset within the postings of an index, as a fraction of the index's
// size.
func inPostings(t testing.TB, dir, id string) float64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, id, "index"))
	if err != nil {
		t.Fatal(err)
	}
	toc, err := index.NewTOCFromByteSlice(byteSlice(text))
	if err != nil {
		t.Fatal(err)
	}
	return (0.6*float64(toc.Postings) + 0.4*float64(toc.PostingsTable)) / float64(len(text))
}

func flip(t testing.TB, dir, id, file string, at float64) {
	t.Helper()
	path := filepath.Join(dir, id, file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 { // some may be padding
		text[int(float64(len(text))*at)+i] ^= 0x55
	}
	write(t, path, string(text))
}
