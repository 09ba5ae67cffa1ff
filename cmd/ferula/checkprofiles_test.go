package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

func TestCheck_ProfileBlocksOfARunningServer(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	s, err := store.New(store.Options{Dir: dir, Retention: -1}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for tenant := range 2 {
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Sample([]uint64{e.Location(e.Function("f", "", "f.go", 1), 2)}, 3)
		set := labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", "shop")
		if err := s.Append(ctx, []string{"one", "two"}[tenant], []profiles.RawProfile{{Labels: set, TimeNS: 1_700_000_000_000_000_000, Raw: e.Append(nil)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(dir, "profiles", "*", "*", block.RowsFile))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want int, args ...string) {
		t.Helper()
		if code := run(append([]string{"check", "profiles"}, args...)); code != want {
			t.Errorf("%s: exit code %d, want %d", what, code, want)
		}
	}
	check("a server's directory", 0, dir)
	check("a link to it", 0, link)
	check("a tenant's directory", 0, filepath.Join(dir, "profiles", "one"))
	check("one block, and another", 0, filepath.Dir(all[0]), filepath.Dir(all[1]))
	check("no directory", 2)
	check("a directory without blocks", 1, t.TempDir())
	check("no such directory", 1, filepath.Join(dir, "none"))
	samples := t.TempDir() // a TSDB's block is not a profile block
	if err := os.MkdirAll(filepath.Join(samples, "01HZZZZZZZZZZZZZZZZZZZZZZZ"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"meta.json", "index"} {
		if err := os.WriteFile(filepath.Join(samples, "01HZZZZZZZZZZZZZZZZZZZZZZZ", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("a directory with a block of samples", 1, samples)

	broken, err := os.ReadFile(all[1])
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(filepath.Dir(all[1]))) // the server has the other one mapped
	if err := os.CopyFS(copied, os.DirFS(filepath.Dir(all[1]))); err != nil {
		t.Fatal(err)
	}
	check("a copy of a block", 0, copied)
	if err := os.WriteFile(filepath.Join(copied, block.RowsFile), broken[:len(broken)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	check("a file that is cut short", 1, copied, dir)
	if err := os.Remove(filepath.Join(copied, block.RowsFile)); err != nil {
		t.Fatal(err)
	}
	check("a missing file", 1, copied)
	if err := syscall.Mkfifo(filepath.Join(copied, block.RowsFile), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a FIFO instead of a file", 1, copied)
	check("a FIFO instead of a directory", 1, filepath.Join(copied, block.RowsFile))
	whole := filepath.Join(t.TempDir(), filepath.Base(copied))
	if err := os.CopyFS(whole, os.DirFS(filepath.Dir(all[1]))); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(whole, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a FIFO in addition to the files", 1, whole)
}
