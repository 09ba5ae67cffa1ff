package app

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	promtsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/tsdb"
)

// backtestFolder is a data directory in which up is 1, except from the 3,000th to the 5,999th second: in a block and
// in the write-ahead log.
func backtestFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	db, err := promtsdb.Open(dir, slog.New(slog.DiscardHandler), nil, promtsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for second := int64(0); second < 20_000; second += 30 {
		up := 1.0
		if second >= 3000 && second < 6000 {
			up = 0
		}
		app := db.Appender(t.Context())
		if _, err := app.Append(0, labels.FromStrings("__name__", "up", "job", "a"), second*1000, up); err != nil {
			t.Fatal(err)
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBacktest_TextAndBlocksOfAFolder(t *testing.T) {
	blocks := filepath.Join(t.TempDir(), "blocks")
	o := BacktestOptions{TSDBPath: backtestFolder(t), WriteBlocks: blocks, Logger: slog.New(slog.DiscardHandler),
		Form: url.Values{"start": {"0"}, "end": {"20000"}, "rules": {`
groups:
- name: g
  rules:
  - {record: "job:up:min", expr: min by (job) (up)}
  - {alert: Down, expr: 'job:up:min == 0', for: 5m, annotations: {summary: '{{ $labels.job }} down'}}
`}}}
	var out bytes.Buffer
	if err := Backtest(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"g/job:up:min: 333 samples", "g/Down: alerts 1, fired 1, notifications 2, repeated ",
		`{alertname="Down", job="a"}`, "pending 1970-01-01T00:50:", "firing 1970-01-01T00:55:",
		`resolved {alertname="Down", job="a"} {summary="a down"}`} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), part) {
			t.Errorf("%s\nlacks %q", out.String(), part)
		}
	}
	db, err := tsdb.OpenReadOnly(blocks, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	q, err := readOnlyQueryable{db}.Querier(0, 20_000_000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+"))
	series, samples, zeros := 0, 0, 0
	for set.Next() {
		series++
		for it := set.At().Iterator(nil); it.Next() != 0; samples++ {
			if _, v := it.At(); v == 0 {
				zeros++
			}
		}
		if got := set.At().Labels().String(); got != `{__name__="job:up:min", job="a"}` {
			t.Error(got)
		}
	}
	if set.Err() != nil || series != 1 || samples != 333 || zeros != 50 {
		t.Errorf("%v: %d series, %d samples, %d of them 0", set.Err(), series, samples, zeros)
	}
}

func TestBacktest_AServerOrAnError(t *testing.T) {
	folder := backtestFolder(t)
	server := httptest.NewServer(nil)
	defer server.Close()
	form := url.Values{"start": {"0"}, "end": {"20000"}, "expr": {"sum(up"}}
	for want, o := range map[string]BacktestOptions{
		"set one of --url and --tsdb.path":               {},
		"--write-blocks needs --tsdb.path":               {URL: "http://a", WriteBlocks: "x"},
		"--write-blocks: the directory ":                 {TSDBPath: folder, WriteBlocks: folder},
		`--url: "ftp://a" is not an http or https URL`:   {URL: "ftp://a"},
		`--url: "1.2.3.4:9" is not an http or https URL`: {URL: "1.2.3.4:9"},
		"404 Not Found: the server has no /api/v1/rule":  {URL: server.URL},
		"could not parse expression":                     {TSDBPath: folder},
		"no such file":                                   {TSDBPath: folder + ".absent"},
	} {
		o.Form, o.Logger = form, slog.New(slog.DiscardHandler)
		if err := Backtest(t.Context(), o, os.Stderr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
