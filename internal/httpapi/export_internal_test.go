package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// endless is a storage whose selections never end. closed is closed with its querier.
type endless struct {
	storage.LabelQuerier
	n      int
	closed chan struct{}
}

func (e *endless) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) { return e, nil }
func (e *endless) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.ChunkSeriesSet {
	return e
}
func (e *endless) Close() error                      { close(e.closed); return nil }
func (e *endless) Err() error                        { return nil }
func (e *endless) Warnings() annotations.Annotations { return nil }
func (e *endless) Next() bool                        { e.n++; return true }
func (e *endless) At() storage.ChunkSeries {
	samples := []chunks.Sample{float{1000}, float{2000}}
	return storage.NewListChunkSeriesFromSamples(labels.FromStrings("__name__", "up", "n", fmt.Sprintf("%012d", e.n)), samples)
}

type float struct{ t int64 }

func (f float) T() int64                      { return f.t }
func (f float) ST() int64                     { return 0 }
func (f float) F() float64                    { return 1 }
func (f float) H() *histogram.Histogram       { return nil }
func (f float) FH() *histogram.FloatHistogram { return nil }
func (f float) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (f float) Copy() chunks.Sample           { return f }

// A client that stops reading must not hold the storage: the TSDB deletes no block while a querier has it open.
func TestExport_AReaderThatStallsIsDisconnected(t *testing.T) {
	from := &endless{closed: make(chan struct{})}
	e := newExporter(New(Options{Parser: parser.NewParser(parser.Options{}), Export: from}))
	e.stall = 100 * time.Millisecond
	server := httptest.NewServer(e)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /?match[]=up&start=1&end=3 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-from.closed:
	case <-time.After(30 * time.Second):
		t.Fatal("the export is still running")
	}
}

func TestExport_HeadReadsNoSamples(t *testing.T) {
	from := &endless{closed: make(chan struct{})}
	w := httptest.NewRecorder()
	newExporter(New(Options{Parser: parser.NewParser(parser.Options{}), Export: from})).
		ServeHTTP(w, httptest.NewRequest(http.MethodHead, "/?match[]=up&start=1&end=3", nil))
	if from.n > 0 || w.Code != http.StatusOK || w.Header().Get("Content-Disposition") != "attachment; filename=export.csv" {
		t.Errorf("%d series were read; %d %v", from.n, w.Code, w.Header())
	}
}

// counted is an empty storage that counts its queriers.
type counted struct{ n int }

func (c *counted) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	c.n++
	return storage.NoopChunkedQuerier(), nil
}

// Each window of a range may be a request to other servers.
func TestExport_LongRangesHaveFewWindows(t *testing.T) {
	for query, want := range map[string][2]int{ // at least, at most
		"start=0&end=7200&format=csv":               {1, 2},
		"start=0&end=7200000&format=csv":            {1000, 1001},
		"start=0&end=72000000&format=csv":           {900, 1000},
		"start=0&end=1800000000&format=jsonl":       {900, 1000},
		"start=0&end=1800000000&format=openmetrics": {1, 1},
		"start=-4e9&end=4e9&format=parquet":         {900, 1000},
	} {
		from, w := &counted{}, httptest.NewRecorder()
		newExporter(New(Options{Parser: parser.NewParser(parser.Options{}), Export: from, Now: time.Now})).
			ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?match[]=up&"+query, nil))
		if from.n < want[0] || from.n > want[1] || w.Code != http.StatusOK {
			t.Errorf("%s: %d queriers; %d %s", query, from.n, w.Code, w.Body)
		}
	}
}
