package gateway

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func summarizeAll(t *testing.T, s *Store, to objstore.Bucket, dry bool) (n int) {
	t.Helper()
	if err := s.Summarize(t.Context(), to, dry, func(*bucket.Meta, int64) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

func everySix(fromMS, toMS int64) storeapi.SeriesRequest {
	return storeapi.SeriesRequest{MinMS: fromMS, MaxMS: toMS, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "up")},
		Summaries: &series.Summaries{Windows: series.Windows{MinMS: fromMS, MaxMS: toMS, Whole: true, Starts: true, RangeMS: 6 * hourMS,
			Ends: series.Steps{FirstMS: fromMS + 6*hourMS, LastMS: toMS, StepMS: 6 * hourMS}}}}
}

// Objects that cannot be used cost time, never a sample: the chunks are read, and summarize makes the object again.
func TestSelect_UnusableSummaries(t *testing.T) {
	b, dir := newBucket(t)
	id := writeBlock(t, dir, 1, 24*hourMS, 20, map[string]string{"p": "a"})
	path := filepath.Join(dir, id, "summaries")
	r := everySix(0, 24*hourMS)
	plain := r
	plain.Summaries = nil
	chunks, _ := openStore(t, b, Options{}).all(t, plain)
	first := openStore(t, b, Options{})
	if n := summarizeAll(t, first, b, true); n != 1 {
		t.Fatalf("a dry run reports %d blocks", n)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Fatalf("after a dry run: %v", err)
	}
	if n := summarizeAll(t, first, b, false); n != 1 {
		t.Fatalf("%d blocks were made", n)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sums, _ := openStore(t, b, Options{}).all(t, r)
	if len(sums) != 20 || maps.EqualFunc(sums, chunks, slices.Equal) {
		t.Fatalf("%d series, chunks of which none is a summary", len(sums))
	}
	flipped := func(at int) []byte {
		all := bytes.Clone(good)
		all[at] ^= 1
		return all
	}
	for name, damaged := range map[string][]byte{"empty": {}, "cut short": good[:len(good)-9], "header": flipped(30), "version": flipped(4),
		"block": flipped(12), "table": flipped(len(good) - 8), "longer": append(bytes.Clone(good), 0)} {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, b, Options{})
		for range 2 {
			if got, warnings := s.all(t, r); len(warnings) > 0 || !maps.EqualFunc(got, chunks, slices.Equal) {
				t.Errorf("%s: %v, other chunks than without the object", name, warnings)
			}
		}
		if n := s.counts.sideErrors.Get(); n != 1 {
			t.Errorf("%s: counted %d times", name, n)
		}
		var log strings.Builder
		s = openStore(t, b, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if n := summarizeAll(t, s, b, false); n != 1 {
			t.Errorf("%s: made %d blocks", name, n)
		}
		if text := log.String(); strings.Contains(text, id) == (name == "version") || strings.Contains(text, "retry_in") {
			t.Errorf("%s: logged %s", name, text)
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, good) {
			t.Errorf("%s: it was not made again: %v", name, err)
		}
	}
	// A damaged group is found when it is read, and a deleted object when a page of it is missing.
	if err := os.WriteFile(path, flipped(len(good)-400), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, b, Options{})
	got, warnings := s.all(t, r)
	for name, list := range got {
		if !slices.Equal(list, sums[name]) && !slices.Equal(list, chunks[name]) {
			t.Errorf("damaged group: series %s has other chunks", name)
		}
	}
	if len(got) != 20 || len(warnings) > 0 || maps.EqualFunc(got, sums, slices.Equal) || s.counts.sideErrors.Get() != 1 {
		t.Errorf("damaged group: %d series, %v, counted %d times", len(got), warnings, s.counts.sideErrors.Get())
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, b, Options{})
	for _, block := range s.blocks {
		if _, err := block.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.sideOf(t.Context(), block) == nil {
			t.Fatal("no summaries")
		}
		block.side.object = s.cache.Object(b, id+"/gone", block.side.object.Size())
		block.release()
	}
	if got, warnings := s.all(t, r); len(warnings) > 0 || !maps.EqualFunc(got, chunks, slices.Equal) || s.counts.sideErrors.Get() != 1 {
		t.Errorf("deleted object: %v, counted %d times", warnings, s.counts.sideErrors.Get())
	}
	// It is looked for again.
	for _, block := range s.blocks {
		block.sideAt = time.Now()
	}
	if got, _ := s.all(t, r); !maps.EqualFunc(got, sums, slices.Equal) {
		t.Error("an object that is there again is not used")
	}
}

// After an upgrade the objects of all blocks are of another version: one line of the log says so.
func TestSelect_SummariesOfAnotherVersionAreLoggedOnce(t *testing.T) {
	b, dir := newBucket(t)
	for i := range int64(2) {
		writeBlock(t, dir, i*24*hourMS, (i+1)*24*hourMS, 2, map[string]string{"p": "a"})
	}
	var log strings.Builder
	s := openStore(t, b, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if n := summarizeAll(t, s, b, false); n != 2 {
		t.Fatalf("%d blocks were made", n)
	}
	all, _ := filepath.Glob(filepath.Join(dir, "*", "summaries"))
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err == nil {
			text[4]++
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, b, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	log.Reset()
	s.all(t, everySix(0, 48*hourMS))
	if n := s.counts.sideErrors.Get(); n != 2 || len(all) != 2 || strings.Count(log.String(), "without summaries") != 1 {
		t.Errorf("%d objects, counted %d: %s", len(all), n, log.String())
	}
}
