package page

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ferula-io/ferula/bench/area"
)

// random bytes hardly compress, so that sizes add up to about the lengths.
func noise(n int, seed byte) string {
	var b strings.Builder
	x := uint32(seed) + 1
	for range n {
		x = x*1664525 + 1013904223
		b.WriteByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"[x>>26])
	}
	return b.String()
}

func TestSizes_TheFirstGraphIsWhatTheIndexReaches(t *testing.T) {
	file := func(text string, n int, seed byte) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(text + "//" + noise(n, seed))}
	}
	dist := fstest.MapFS{
		"index.html":                {Data: []byte(`<script src="./theme.js"></script><script type="module" src="./assets/index-1.js"></script><link href="./assets/a.css">`)},
		"theme.js":                  file("", 100, 1),
		"LICENSES.txt":              file("", 90_000, 2),
		"assets/a.css":              file("", 3000, 3),
		"assets/index-1.js":         file(`import{a}from"./lib-2.js";import("./late-3.js");new Worker(new URL(`+"`scan.worker-4.js`"+`,import.meta.url))`, 5000, 4),
		"assets/lib-2.js":           file(`import"./deep-5.js";`, 7000, 5),
		"assets/deep-5.js":          file("", 11_000, 6),
		"assets/late-3.js":          file("", 50_000, 7),
		"assets/scan.worker-4.js":   file("", 13_000, 8),
		"assets/unreferenced-6.css": file("", 17_000, 9),
	}
	first, all, err := sizes(dist)
	if err != nil {
		t.Fatal(err)
	}
	near := func(got, want int) bool { return got > want*6/10 && got < want*9/10 } // of 64 letters six bits of eight are left
	if !near(first, 39_100) || !near(all, 39_100+67_000) {
		t.Errorf("first graph %d, all %d bytes", first, all)
	}
	delete(dist, "assets/deep-5.js")
	if _, _, err := sizes(dist); !errors.Is(err, area.ErrEmpty) || !strings.Contains(err.Error(), "deep-5.js") {
		t.Errorf("a missing import: %v", err)
	}
	if _, _, err := sizes(fstest.MapFS{"x.js": {}}); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("no index: %v", err)
	}
}

func TestSizes_OfTheCommittedPageIncludeItsWorker(t *testing.T) {
	dist := filepath.Join("..", "..", "..", "internal", "httpapi", "ui", "dist")
	first, all, err := sizes(os.DirFS(dist))
	if err != nil {
		t.Fatal(err)
	}
	if first < 50_000 || first >= all {
		t.Errorf("first graph %d, all %d bytes", first, all)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dist)); err != nil {
		t.Fatal(err)
	}
	workers, err := filepath.Glob(filepath.Join(copied, "assets", "*.worker-*.js"))
	if err != nil || len(workers) != 1 {
		t.Fatalf("%v %v", workers, err)
	}
	if err := os.Remove(workers[0]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sizes(os.DirFS(copied)); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("the worker is not counted: %v", err)
	}
}

func TestBrowser_SaysWhatIsMissing(t *testing.T) {
	t.Setenv("CHROMIUM", filepath.Join(t.TempDir(), "none"))
	if _, missing := browser(t.TempDir()); !strings.Contains(missing, "Chromium") {
		t.Errorf("got %q", missing)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CHROMIUM", self)
	if _, missing := browser(t.TempDir()); !strings.Contains(missing, "node") && !strings.Contains(missing, "npm") {
		t.Errorf("got %q", missing)
	}
}
