package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/export"
)

// readOptions select series of a day into a file.
func readOptions(t *testing.T) ReadOptions {
	return ReadOptions{
		Export: export.Options{
			Matchers: [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchEqual, "__name__", "level")}},
			EndMS:    24 * 3600_000, Output: filepath.Join(t.TempDir(), "out.csv"), Tries: 1, Request: "test",
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

func TestRead_NeedsOneSource(t *testing.T) {
	for _, set := range []func(*ReadOptions){
		func(*ReadOptions) {},
		func(o *ReadOptions) { o.URL, o.Store = "http://127.0.0.1:1", "127.0.0.1:1" },
		func(o *ReadOptions) { o.URL, o.TSDBPath = "http://127.0.0.1:1", t.TempDir() },
		func(o *ReadOptions) { o.Store, o.TSDBPath = "127.0.0.1:1", t.TempDir() },
	} {
		o := readOptions(t)
		set(&o)
		if _, err := Read(t.Context(), o); !errors.Is(err, export.ErrOptions) || !strings.Contains(err.Error(), "--url, --store and --tsdb.path") && !strings.Contains(err.Error(), "--url, --store or --tsdb.path") {
			t.Errorf("%q %q %q: %v", o.URL, o.Store, o.TSDBPath, err)
		}
	}
}

func TestRead_ReadsTheFolderOfADatabase(t *testing.T) {
	o := readOptions(t)
	o.TSDBPath = t.TempDir()
	bucketBlock(t, o.TSDBPath, "x", "y")
	sum, err := Read(t.Context(), o)
	if err != nil || sum.Samples != 600 {
		t.Errorf("%+v, %v", sum, err)
	}
	if text, err := os.ReadFile(o.Export.Output); err != nil || strings.Count(string(text), "\n") < 600 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	o = readOptions(t)
	o.TSDBPath = filepath.Join(t.TempDir(), "none")
	if _, err := Read(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.TSDBPath) {
		t.Error(err)
	}
}

func TestRead_RequestsGoToTheReadEndpointWithTheHeaders(t *testing.T) {
	for given, want := range map[string]string{"": "/api/v1/read", "/": "/api/v1/read", "/pre": "/pre/api/v1/read", "/own/read": "/own/read", "/own/read/": "/own/read"} {
		requests := make(chan *http.Request, 10)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			requests <- r.Clone(context.Background())
			http.Error(w, "no such day", http.StatusBadRequest)
		}))
		o := readOptions(t)
		o.URL, o.Header = server.URL+given, http.Header{"X-Team": {"a", "b"}, "Host": {"prometheus.example"}}
		_, err := Read(t.Context(), o)
		server.Close()
		if err == nil || !strings.Contains(err.Error(), "no such day") {
			t.Errorf("%s: %v", given, err)
		}
		r := <-requests
		if r.URL.Path != want || r.Host != "prometheus.example" || strings.Join(r.Header["X-Team"], " ") != "a b" {
			t.Errorf("%s: %s of %s with %v, want %s", given, r.URL.Path, r.Host, r.Header, want)
		}
	}
	for _, bad := range []string{"ftp://a", "a", "http://", "http://a%zz"} {
		o := readOptions(t)
		if o.URL = bad; true {
			if _, err := Read(t.Context(), o); !errors.Is(err, export.ErrOptions) || !strings.Contains(err.Error(), "--url") {
				t.Errorf("%s: %v", bad, err)
			}
		}
	}
}

func TestRead_FilesOfTheClientAreNamedInErrors(t *testing.T) {
	o := readOptions(t)
	o.URL, o.HTTPConfigFile = "http://127.0.0.1:1", filepath.Join(t.TempDir(), "none.yml")
	if _, err := Read(t.Context(), o); !errors.Is(err, export.ErrOptions) || !strings.Contains(err.Error(), "--http.config-file") {
		t.Error(err)
	}
}

// A server that only has samples sends a response that is decoded as a whole.
func TestRead_TooLongResponsesOfSamplesNameTheFlag(t *testing.T) {
	result := &prompb.QueryResult{}
	for i := range 5000 {
		result.Timeseries = append(result.Timeseries, &prompb.TimeSeries{
			Labels:  []prompb.Label{{Name: "__name__", Value: "level"}, {Name: "room", Value: fmt.Sprintf("%05d", (i*1237)%5000)}},
			Samples: []prompb.Sample{{Timestamp: 1000, Value: float64(i)}},
		})
	}
	plain, err := (&prompb.ReadResponse{Results: []*prompb.QueryResult{result}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Header().Set("Content-Encoding", "snappy")
		_, _ = w.Write(snappy.Encode(nil, plain))
	}))
	defer server.Close()
	o := readOptions(t)
	o.URL, o.SortBytes, o.Export.Window = server.URL, 1<<20, 48*time.Hour
	if sum, err := Read(t.Context(), o); err != nil || sum.Samples != 5000 {
		t.Errorf("%+v, %v", sum, err)
	}
	o = readOptions(t)
	o.URL, o.SortBytes, o.Export.Window = server.URL, 8<<10, 48*time.Hour
	if _, err := Read(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--max-sort-bytes") {
		t.Errorf("%v", err)
	}
}
