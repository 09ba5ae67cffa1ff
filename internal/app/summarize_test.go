package app

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/files"
)

// A run that is killed leaves its files, the next run removes them, but not those of a run that goes on.
func TestSummarize_RemovesWhatKilledRunsLeft(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	left := func(name string, age time.Duration) string {
		path := filepath.Join(dir, name)
		at := time.Now().Add(-age)
		if err := errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "pages"), nil, 0o600),
			os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	killed, running := left("ferula-summarize-1", time.Hour), left("ferula-summarize-2", time.Hour)
	lock, err := files.LockDir(running)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	kept := []string{running, left("ferula-summarize-3", 0), left("other", time.Hour)}
	var out bytes.Buffer
	if err := Summarize(t.Context(), SummarizeOptions{Logger: slog.New(slog.DiscardHandler),
		Bucket: "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}"}, &out); err != nil || out.Len() > 0 {
		t.Error(err, out.String())
	}
	if _, err := os.Stat(killed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", killed, err)
	}
	for _, path := range kept {
		if _, err := os.Stat(filepath.Join(path, "pages")); err != nil {
			t.Error(err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != len(kept) {
		t.Error(entries)
	}
}
