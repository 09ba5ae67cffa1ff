package export

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/series"
)

// openBelow returns the files below a directory that this process has open.
func openBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	const descriptors = "/proc/self/fd"
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		t.Skip("the open files are not listed:", err)
	}
	for _, e := range entries {
		if name, err := os.Readlink(filepath.Join(descriptors, e.Name())); err == nil && strings.HasPrefix(name, dir) {
			names = append(names, name)
		}
	}
	return names
}

// openedSource counts the queriers that are open.
type openedSource struct {
	*fixture
	open int
}

func (o *openedSource) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	q, err := o.fixture.RawQuerier(ctx, mint, maxt)
	if err != nil {
		return nil, err
	}
	o.open++
	return openedQuerier{q, o}, nil
}

type openedQuerier struct {
	series.Querier
	of *openedSource
}

func (q openedQuerier) Close() error { q.of.open--; return q.Querier.Close() }

func TestRun_FilesAndQueriersAreClosed(t *testing.T) {
	for _, format := range []string{CSV, JSONLines, OpenMetrics, Parquet, Blocks} {
		for name, fail := range map[string]func(opened, series int) error{
			"complete":        nil,
			"at once":         func(int, int) error { return errDown },
			"in a window":     func(opened, series int) error { return failIf(opened == 1 && series == 2) },
			"a later window":  func(opened, series int) error { return failIf(opened == 3 && series == 1) },
			"opening a later": func(opened, series int) error { return failIf(opened == 3 && series < 0) },
		} {
			w := newFixture(6, format != OpenMetrics)
			w.fail = fail
			from := &openedSource{fixture: w}
			o := options(t, from, format, 6)
			o.Tries = 1
			_, err := Run(context.Background(), o)
			if (err == nil) != (fail == nil) || fail != nil && !errors.Is(err, errDown) {
				t.Errorf("%s, %s: %v", format, name, err)
			}
			if files := openBelow(t, filepath.Dir(o.Output)); len(files) > 0 || from.open != 0 {
				t.Errorf("%s, %s: %d queriers and %q are open", format, name, from.open, files)
			}
			if name == "in a window" || name == "at once" { // nothing is left to resume from
				if entries, err := os.ReadDir(filepath.Dir(o.Output)); err != nil || len(entries) > 0 {
					t.Errorf("%s, %s: %v, %v", format, name, entries, err)
				}
			}
		}
	}
}

func failIf(fails bool) error {
	if fails {
		return errDown
	}
	return nil
}

func TestJoin_FailuresCloseTheFiles(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, format := range []string{CSV, JSONLines, OpenMetrics, Parquet} {
		dir := t.TempDir()
		whole := options(t, newFixture(2, false), format, 2)
		mustRun(t, whole)
		part := filepath.Join(dir, "00000.part")
		text, err := os.ReadFile(whole.Output)
		if err == nil {
			err = os.WriteFile(part, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		r := &run{opts: Options{Format: format}}
		for name, c := range map[string]struct {
			ctx   context.Context
			parts []string
		}{"canceled": {canceled, []string{part}}, "a part is gone": {t.Context(), []string{part, part + "x"}}} {
			if format == OpenMetrics && name == "canceled" {
				continue // the text is no part of OpenMetrics
			}
			if err := r.joinInto(c.ctx, filepath.Join(dir, "tmp"), filepath.Join(dir, "out"), c.parts); err == nil {
				t.Errorf("%s, %s: no error", format, name)
			}
			if files := openBelow(t, dir); len(files) > 0 {
				t.Errorf("%s, %s: open %q", format, name, files)
			}
		}
		if err := r.joinInto(t.Context(), filepath.Join(dir, "none", "tmp"), filepath.Join(dir, "out"), nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", format, err)
		}
		if err := r.joinInto(t.Context(), filepath.Join(dir, "tmp"), filepath.Join(dir, "none", "out"), nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestMergeParts_ClosesTheParts(t *testing.T) {
	dir := t.TempDir()
	empty, broken := filepath.Join(dir, "empty"), filepath.Join(dir, "broken")
	if err := errors.Join(os.WriteFile(empty, nil, 0o600), os.WriteFile(broken, []byte{0xff}, 0o600)); err != nil {
		t.Fatal(err)
	}
	for want, parts := range map[string][]string{"": {empty, empty}, "broken": {empty, broken}, "none": {empty, filepath.Join(dir, "none")}} {
		err := mergeParts(t.Context(), bufio.NewWriter(io.Discard), parts, true)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if files := openBelow(t, dir); len(files) > 0 {
			t.Errorf("%q: open %q", want, files)
		}
	}
}

func TestRetryWait_DoublesUpToAMinute(t *testing.T) {
	for n, want := range map[int]string{1: "1s", 2: "2s", 3: "4s", 6: "32s", 7: "1m0s", 100: "1m0s"} {
		if got := retryWait(1e9, n).String(); got != want {
			t.Errorf("after %d failures: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{1: "1h0m0s", 2: "1h0m0s", 9: "1h0m0s"} {
		if got := retryWait(3600e9, n).String(); got != want {
			t.Errorf("of an hour, after %d failures: %s, want %s", n, got, want)
		}
	}
}

func TestFormatOf_NamesAndDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a.dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for output, want := range map[string]string{
		"a.parquet": Parquet, "a.CSV": CSV, "a.csv/": CSV, "a.jsonl": JSONLines, "a.ndjson": JSONLines, "a.om": OpenMetrics, "a.openmetrics": OpenMetrics, "a.prom": OpenMetrics,
		"a": Blocks, "a/": Blocks, "": "", Stdout: "", "a.b/": Blocks, "a.b": "", dir: Blocks,
	} {
		if got := FormatOf(output); got != want {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
	for output, want := range map[string]string{"a": "a.partial", "a/": "a.partial", "b/a//": "b/a.partial"} {
		if got := PartialDir(output); got != want {
			t.Errorf("%s: %s", output, got)
		}
	}
}
