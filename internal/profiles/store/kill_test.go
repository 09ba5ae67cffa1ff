package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

const childVariable = "FERULA_TEST_PROFILE_STORE"

// TestMain is also the killed program: with childVariable set to a mode and a directory it
// pushes until it is killed.
func TestMain(m *testing.M) {
	if mode, dir, ok := strings.Cut(os.Getenv(childVariable), " "); ok {
		if err := pushUntilKilled(mode, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func openTest(t testing.TB, dir string, change func(*Store)) *Store {
	t.Helper()
	s, err := New(Options{Dir: dir, Retention: -1}, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.openWait = time.Hour // nothing depends on how fast tenants are opened
	if change != nil {
		change(s)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// numbered is a small profile whose ID is its number and whose value is one more.
func numbered(n uint64) profiles.RawProfile {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1)
	e.Sample([]uint64{e.Location(e.Function(fmt.Sprint("f", n%7), "", "", 0), 1)}, int64(n)+1)
	p := profiles.RawProfile{TimeNS: 1_700_000_000_000_000_000 + int64(n), Raw: e.Append(nil)}
	binary.BigEndian.PutUint64(p.ID[:], n+1)
	p.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", string(rune('a'+n%3)))
	return p
}

// pushUntilKilled prints the number of every profile after it is stored.
func pushUntilKilled(mode, dir string) error {
	s, err := New(Options{Dir: dir, Retention: -1}, quiet, nil)
	if err != nil {
		return err
	}
	if err := s.Open(); err != nil {
		return err
	}
	ctx := context.Background()
	from, err := strconv.ParseUint(os.Getenv(childVariable+"_FROM"), 10, 64)
	if err != nil {
		return err
	}
	for n := from; n < from+1_000_000; n += 2 {
		if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n), numbered(n + 1)}); err != nil {
			return err
		}
		if _, err := fmt.Println(n); err != nil {
			return err
		}
		if mode != "ingest" && n%6 == 0 {
			if err := s.Flush(ctx); err != nil {
				return err
			}
		}
		if mode == "compact" && n%6 == 0 {
			if err := s.Compact(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// stored counts the rows of every number.
func stored(t *testing.T, s *Store) map[uint64]int {
	t.Helper()
	v, err := s.View(context.Background(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if len(v.Warnings) > 0 {
		t.Fatal(v.Warnings)
	}
	counts := map[uint64]int{}
	for _, src := range v.Sources {
		rows := make([]int, src.Rows())
		for row := range rows {
			rows[row] = row
			id, err := src.ID(row)
			if err != nil {
				t.Fatal(err)
			}
			counts[binary.BigEndian.Uint64(id[:])-1]++
		}
		err := src.Samples(context.Background(), rows, func(row int, stacks []uint32, values []int64) error {
			id, err := src.ID(row)
			if n := int64(binary.BigEndian.Uint64(id[:]) - 1); len(values) != 1 || values[0] != n+1 {
				t.Errorf("%s: the samples of profile %d are %v", src.Name(), n, values)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return counts
}

func TestStore_KillLosesAndDuplicatesNothing(t *testing.T) {
	for _, mode := range []string{"ingest", "flush", "compact"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			acknowledged := map[uint64]bool{}
			r := rand.New(rand.NewPCG(1, uint64(len(mode))))
			kills := 20
			if testing.Short() {
				kills = 3
			}
			for kill := range kills {
				from := uint64(kill+1) * 10_000_000
				for _, n := range runAndKill(t, mode, dir, from, time.Duration(r.IntN(60_000))*time.Microsecond) {
					acknowledged[n], acknowledged[n+1] = true, true
				}
				s, err := New(Options{Dir: dir, Retention: -1}, quiet, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				counts := stored(t, s)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				for n := range acknowledged {
					if counts[n] != 1 {
						t.Fatalf("kill %d: profile %d is stored %d times", kill, n, counts[n])
					}
				}
				for n, count := range counts {
					if count != 1 || counts[n^1] != 1 {
						t.Fatalf("kill %d: profile %d is stored %d times, its twin %d times", kill, n, count, counts[n^1])
					}
				}
			}
			if len(acknowledged) < 2*kills {
				t.Fatalf("only %d profiles were pushed", len(acknowledged))
			}
		})
	}
}

// runAndKill starts a child that pushes, kills it some time after its first
// acknowledgement, and returns the acknowledged pushes.
func runAndKill(t *testing.T, mode, dir string, from uint64, after time.Duration) []uint64 {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+mode+" "+dir, fmt.Sprintf("%s_FROM=%d", childVariable, from))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acknowledged []uint64
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		n, err := strconv.ParseUint(lines.Text(), 10, 64)
		if err != nil {
			break // the last line may be incomplete
		}
		acknowledged = append(acknowledged, n)
		if len(acknowledged) == 1 {
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil || len(acknowledged) == 0 {
		t.Fatalf("the child exited after %d pushes: %v", len(acknowledged), err)
	}
	return acknowledged
}

func TestOpen_ReplacedBlockIsRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, nil)
	ctx := context.Background()
	for n := range uint64(4) {
		if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n)}); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := filepath.Join(t.TempDir(), "before")
	if err := os.CopyFS(before, os.DirFS(filepath.Join(dir, "profiles", "t"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The crash came after the new block was written and before the old ones were removed.
	entries, err := os.ReadDir(before)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "wal" {
			if err := os.CopyFS(filepath.Join(dir, "profiles", "t", e.Name()), os.DirFS(filepath.Join(before, e.Name()))); err != nil {
				t.Fatal(err)
			}
		}
	}
	counts := stored(t, openTest(t, dir, nil))
	for n := range uint64(4) {
		if counts[n] != 1 {
			t.Errorf("profile %d is stored %d times", n, counts[n])
		}
	}
	if blocks, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "*", "index")); err != nil || len(blocks) != 1 {
		t.Errorf("%d blocks are left, %v", len(blocks), err)
	}
}

// restore copies a block into the directory of the tenant t, and returns the copy.
func restore(t *testing.T, dir, from string) (path string) {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(from, block.IndexFile))
	if err != nil {
		t.Fatal(err)
	}
	meta, err := block.MetaOf(index)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "profiles", "t", ulid.ULID(meta.ULID).String())
	if err := os.CopyFS(path, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return path
}

// A copy that was interrupted can have files of the right size without their content.
func TestOpen_DamagedBlockReplacesNone(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	flushed(t, s, 0, 1, 2)
	merged := s.merged(t, 0, 1, 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(restore(t, dir, merged), block.RowsFile)
	info, err := os.Stat(rows)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rows, make([]byte, info.Size()), 0o644); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if once(t, counts, 3); len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrCorrupt) {
		t.Error(warnings)
	}
	// The operator copies it again. Now it replaces the others.
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Dir(rows))); err != nil {
		t.Fatal(err)
	}
	restore(t, dir, merged)
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings = s.rows(t)
	if once(t, counts, 3); len(warnings) > 0 || len(s.tenants["t"].blocks) != 1 {
		t.Error(warnings, len(s.tenants["t"].blocks))
	}
}

// A bucket's compactor and this server may compact the same blocks.
func TestOpen_TwoCompactionsOfTheSameBlocksAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	flushed(t, s, 0, 1, 2, 3)
	merged := s.merged(t, 0, 1, 2, 3)
	if err := errors.Join(s.Compact(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	restore(t, dir, merged)
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if once(t, counts, 4); len(warnings) > 0 {
		t.Error(warnings)
	}
}

// A copy of a block under another name has the same rows, and its directory is not the one that is removed with it.
func TestOpen_CopyOfABlockIsReadOnce(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	path := flushed(t, s, 0).blocks[0].path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "profiles", "t", ulid.Make().String()), os.DirFS(path)); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if once(t, counts, 1); len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrCorrupt) {
		t.Error(warnings)
	}
}
