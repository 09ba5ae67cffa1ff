package query

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

// fakeRemote is a Remote of given blocks: index, rows and spans, by ID.
type fakeRemote map[ulid.ULID][3][]byte

// Blocks implements store.Remote.
func (s fakeRemote) Blocks(context.Context) (list []profiles.BucketBlock, err error) {
	for id, files := range s {
		list = append(list, profiles.BucketBlock{
			Tenant: "t", ID: id, Index: bytes.NewReader(files[0]), Rows: bytes.NewReader(files[1]), Spans: bytes.NewReader(files[2]),
			IndexBytes: int64(len(files[0])), RowsBytes: int64(len(files[1])),
		})
	}
	return list, nil
}

// Mark implements store.Remote.
func (s fakeRemote) Mark(context.Context, string, ulid.ULID, time.Time, string) error { return nil }

// Unmark implements store.Remote.
func (s fakeRemote) Unmark(context.Context, string, ulid.ULID) error { return nil }

// Delete implements store.Remote.
func (s fakeRemote) Delete(context.Context, string, ulid.ULID) error { return nil }

// take copies the new blocks of a store, and returns their directories.
func (s fakeRemote) take(t *testing.T, dir string) (dirs []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "*", "index"))
	must(t, err)
	for _, path := range found {
		blockDir := filepath.Dir(path)
		index, err := os.ReadFile(path)
		rows, err2 := os.ReadFile(filepath.Join(blockDir, "profiles.parquet"))
		must(t, errors.Join(err, err2))
		spans, _ := os.ReadFile(filepath.Join(blockDir, "spans")) // not every block has them
		s[ulid.MustParseStrict(filepath.Base(blockDir))] = [3][]byte{index, rows, spans}
		dirs = append(dirs, blockDir)
	}
	return dirs
}

// openOver opens a store over a remote and waits until it has listed the blocks.
func openOver(t *testing.T, dir string, s store.Remote) *store.Store {
	t.Helper()
	opened := openStore(t, dir, store.Options{Retention: -1, Remote: s})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		v, err := opened.View(context.Background(), "t", 0, 1)
		must(t, err)
		unlisted := len(v.Warnings) > 0 && strings.Contains(v.Warnings[0].Error(), "not listed yet")
		v.Close()
		if !unlisted {
			return opened
		}
		if time.Now().After(end) {
			t.Fatal("the blocks elsewhere were not listed")
		}
	}
}

// newFakeRemote pushes profiles, some of them in several parts. It returns a remote with every written block, and the
// directory of the closed store with the blocks that it still has.
func newFakeRemote(t *testing.T, r *rand.Rand, skip func(level int) bool) (s fakeRemote, dir string, pushed []profiles.RawProfile) {
	t.Helper()
	ctx := context.Background()
	s, dir = fakeRemote{}, t.TempDir()
	from := openStore(t, dir, store.Options{Retention: -1})
	for i := range 17 {
		for range 3 {
			push := randomPush(r, pushed)
			must(t, from.Append(ctx, "t", push))
			pushed = append(pushed, push...)
		}
		must(t, from.Flush(ctx))
		if !skip(0) {
			s.take(t, dir)
		}
		if i%4 == 3 {
			must(t, from.Compact(ctx))
			if !skip(1) {
				s.take(t, dir)
			}
		}
	}
	s.take(t, dir)
	must(t, from.Close())
	return s, dir, pushed
}

func TestEngine_ResultsAreEqualFromDiskBucketAndBoth(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 11))
		// Some blocks were merged before they were shipped.
		s, dir, pushed := newFakeRemote(t, r, func(level int) bool { return seed%3 == 1 && level == 1 || seed%3 == 2 && r.IntN(2) == 0 })
		rows := naiveRows(t, pushed)
		check := func(what, dir string) {
			t.Helper()
			opened := openOver(t, dir, s)
			checkAgainstNaive(t, r, New(Options{}, opened), rows, pushed)
			checkAgainstNaive(t, r, New(Options{}, backwards{opened}), rows, pushed)
			if stats, err := opened.Stats("t"); err != nil || stats.OldestMS == 0 {
				t.Errorf("%s: %+v, %v", what, stats, err)
			}
			must(t, opened.Close())
		}
		check("both have all", dir)
		dirs := fakeRemote{}.take(t, dir)
		must(t, os.RemoveAll(dirs[r.IntN(len(dirs))]))
		check("one is only elsewhere", dir)
		check("all are only elsewhere", t.TempDir())
	}
}

func TestEngine_BrokenRemoteBlockIsAWarning(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	r := rand.New(rand.NewPCG(5, 6))
	from := openStore(t, dir, store.Options{Retention: -1})
	var pushes [2][]profiles.RawProfile
	var broken ulid.ULID
	s := fakeRemote{}
	for i := range pushes {
		for range 15 {
			pushes[i] = append(pushes[i], randomPush(r, nil)...)
		}
		must(t, errors.Join(from.Append(ctx, "t", pushes[i]), from.Flush(ctx)))
		s.take(t, dir)
		for id := range s {
			if i == 0 {
				broken = id
			}
		}
	}
	req := &profiles.SeriesRequest{
		Tenant: "t", Type: cpuType, StartMS: epochMS - 1000, EndMS: epochMS + 40_000, StepMS: 5000, Exemplars: true, GroupBy: []string{"service_name"},
	}
	want := naiveSelect(naiveRows(t, pushes[1]), req)
	whole := s[broken]
	index, rows := bytes.Clone(whole[0]), bytes.Clone(whole[1])
	index[len(index)/3] ^= 1
	for i := range len(rows) / 2 {
		rows[i] ^= 1
	}
	for name, files := range map[string][2][]byte{
		"index": {index, whole[1]}, "rows": {whole[0], rows}, "short rows": {whole[0], whole[1][:len(whole[1])/2]}, "no index": {nil, whole[1]}, "short index": {whole[0][:150], whole[1]},
	} {
		s[broken] = [3][]byte{files[0], files[1], whole[2]}
		result, err := New(Options{}, openOver(t, t.TempDir(), s)).SelectSeries(ctx, req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := spell(result); len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0].Error(), "block bucket/"+broken.String()) || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, result.Warnings, got, want)
		}
		result.Close()
	}
}
