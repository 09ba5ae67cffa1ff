package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/httpapi"
)

// exportServer serves /export of a storage with the samples 1, 2 and 3 of each of two series, a second apart from t=1.
func exportServer(t *testing.T) *httptest.Server {
	t.Helper()
	db, err := openDB(t.TempDir(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	app := db.Appender(t.Context())
	for _, pod := range []string{"a", "b"} {
		for i := range int64(3) {
			if _, err := app.Append(0, labels.FromStrings("__name__", "up", "pod", pod), 1000*(i+1), float64(i+1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return serveExport(t, db)
}

func serveExport(t *testing.T, from storage.ChunkQueryable) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{Parser: parser.NewParser(parser.Options{}), Export: from}).Register(mux, prefix)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// exportOf requests /export. err is the error of reading the body.
func exportOf(t *testing.T, server *httptest.Server, params url.Values) (res *http.Response, body string, err error) {
	t.Helper()
	res, err = server.Client().Get(server.URL + prefix + "/export?" + params.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

func TestExport_HasTheSamplesOfTheRange(t *testing.T) {
	server := exportServer(t)
	params := func(format string) url.Values {
		return url.Values{"match[]": {`up{pod="a"}`, `up{pod="b"}`}, "start": {"2"}, "end": {"3"}, "format": {format}}
	}
	for format, lines := range map[string]int{"": 5, "csv": 5, "jsonl": 2, "openmetrics": 5, "parquet": 0} {
		res, body, err := exportOf(t, server, params(format))
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%q: %v, %d: %s", format, err, res.StatusCode, body)
		}
		if got := strings.Count(body, "\n"); lines > 0 && got != lines {
			t.Errorf("%q: %d lines:\n%s", format, got, body)
		}
		if format == "parquet" && (!strings.HasPrefix(body, "PAR1") || !strings.HasSuffix(body, "PAR1")) {
			t.Errorf("not a Parquet file: %.40q", body)
		}
		want := format
		if want == "" {
			want = "csv"
		}
		if got := res.Header.Get("Content-Disposition"); got != "attachment; filename=export."+want {
			t.Errorf("%q: %s", format, got)
		}
	}
}

func TestExport_OfNothingIsAFile(t *testing.T) {
	server := exportServer(t)
	for _, format := range []string{"csv", "jsonl", "openmetrics", "parquet"} {
		res, body, err := exportOf(t, server, url.Values{"match[]": {"none"}, "start": {"1"}, "end": {"3"}, "format": {format}})
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(res.Header.Get("Content-Disposition"), "export."+format) {
			t.Errorf("%s: %v, %d: %s", format, err, res.StatusCode, body)
		}
	}
}

func TestExport_BadParametersAreNamed(t *testing.T) {
	server := exportServer(t)
	good := url.Values{"match[]": {"up"}, "start": {"1"}, "end": {"3"}}
	for text, change := range map[string]url.Values{
		"no match[]":                                  {"match[]": nil},
		`invalid parameter \"match[]\"`:               {"match[]": {"{"}},
		"non-empty matcher":                           {"match[]": {`{a=~".*"}`}},
		`invalid parameter \"start\"`:                 {"start": {""}},
		`invalid parameter \"end\"`:                   {"end": {"x"}},
		"csv, jsonl, openmetrics, parquet":            {"format": {"blocks"}},
		"end timestamp must not be before start time": {"start": {"4"}},
	} {
		params := url.Values{}
		for _, from := range []url.Values{good, change} {
			for name, list := range from {
				params[name] = list
			}
		}
		res, body, err := exportOf(t, server, params)
		if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(body, text) || !json.Valid([]byte(body)) {
			t.Errorf("%s: %v, %d: %s", text, err, res.StatusCode, body)
		}
	}
}

// waiting is a storage whose queriers are opened once proceed is closed.
type waiting struct {
	opened  chan struct{}
	proceed chan struct{}
}

func (w waiting) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	w.opened <- struct{}{}
	<-w.proceed
	return storage.NoopChunkedQuerier(), nil
}

func TestExport_OneAboveTheLimitIsRefused(t *testing.T) {
	w := waiting{make(chan struct{}), make(chan struct{})}
	server := serveExport(t, w)
	params := url.Values{"match[]": {"up"}, "start": {"1"}, "end": {"3"}}
	done := make(chan int)
	for range 4 {
		go func() {
			req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL+prefix+"/export?"+params.Encode(), nil)
			res, err := server.Client().Do(req)
			if err != nil {
				done <- math.MaxInt
				return
			}
			_ = res.Body.Close()
			done <- res.StatusCode
		}()
	}
	for range 4 {
		<-w.opened
	}
	if res, body, err := exportOf(t, server, params); err != nil || res.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "4 exports are running") {
		t.Errorf("%v, %d: %s", err, res.StatusCode, body)
	}
	close(w.proceed)
	for range 4 {
		if status := <-done; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
}
