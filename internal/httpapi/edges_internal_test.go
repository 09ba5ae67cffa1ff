package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

func TestStepGrid_HoldsTimesThatAFloatHolds(t *testing.T) {
	const most = 1 << 53
	for g, want := range map[stepGrid]bool{
		{start: most, step: 1, count: 1}: true, {start: most + 1, step: 1, count: 1}: false, {start: -most, step: 1, count: 1}: true, {start: -most - 1, step: 1, count: 1}: false,
		{step: most, count: 1}: true, {step: most + 1, count: 1}: false, {step: 0, count: 1}: false, {step: 1, count: 1}: true, {step: -1, count: 1}: false,
	} {
		if got := g.hold(promql.Matrix{{Floats: []promql.FPoint{{T: g.start}}}}); got != want {
			t.Errorf("%+v: %v", g, got)
		}
	}
	g := stepGrid{start: 10, step: 5, count: 3}
	for text, want := range map[string]bool{"[10 15 20]": true, "[10 20]": true, "[15]": true, "[20]": true, "[]": true, "[25]": false, "[5]": false, "[12]": false, "[15 10]": false, "[10 10]": false, "[10 15 20 25]": false} {
		var points []promql.FPoint
		for field := range strings.FieldsSeq(strings.Trim(text, "[]")) {
			var at int64
			if _, err := fmt.Sscan(field, &at); err != nil {
				t.Fatal(err)
			}
			points = append(points, promql.FPoint{T: at})
		}
		if got := g.holdPoints(points); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestStepGrid_RunsEndAtGaps(t *testing.T) {
	g := stepGrid{start: 0, step: 5, count: 10}
	points := func(times ...int64) (all []promql.FPoint) {
		for _, at := range times {
			all = append(all, promql.FPoint{T: at})
		}
		return all
	}
	for want, p := range map[int][]promql.FPoint{1: points(5), 2: points(5, 10, 20, 25), 3: points(0, 5, 10), 4: points(0, 5, 10, 15, 30)} {
		if got := g.run(p); got != want {
			t.Errorf("%v: %d", p, got)
		}
	}
}

// A section ends with the series that reaches sectionBytes.
func TestColumns_SectionsEndAtTheirSize(t *testing.T) {
	for less, want := range map[int]int{0: 1, 1: 2} {
		const samples = 8000
		name := strings.Repeat("x", sectionBytes-16-len(`[{"a":""}`)-8*samples-less)
		m := promql.Matrix{{Metric: labels.FromStrings("a", name), Floats: make([]promql.FPoint, samples)}, {}, {}}
		for i := range m[0].Floats {
			m[0].Floats[i].T = int64(i)
		}
		m[1].Floats = m[0].Floats // with this one the section is full
		c := &matrixColumns{m, stepGrid{step: 1, count: samples}}
		if got := c.appendSeries(&stream{}, m); got != want {
			t.Errorf("%d bytes less: %d series in the section, want %d", less, got, want)
		}
	}
	m := make(promql.Matrix, seriesPerSection+1)
	c := &matrixColumns{m, stepGrid{step: 1, count: 1}}
	if got := c.appendSeries(&stream{}, m); got != seriesPerSection {
		t.Errorf("%d series in the section", got)
	}
	if got := c.appendSeries(&stream{}, m[:seriesPerSection]); got != seriesPerSection {
		t.Errorf("%d series in the section", got)
	}
}

// fewSeries is a storage with n series of two samples. Its selections end with err, with warnings.
type fewSeries struct {
	endless
	left     int
	openErr  error
	err      error
	warnings annotations.Annotations
}

func (f *fewSeries) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) { return f, f.openErr }
func (f *fewSeries) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.ChunkSeriesSet {
	return f
}
func (f *fewSeries) Close() error                      { return nil }
func (f *fewSeries) Err() error                        { return f.err }
func (f *fewSeries) Warnings() annotations.Annotations { return f.warnings }
func (f *fewSeries) Next() bool                        { f.n++; f.left--; return f.left >= 0 }

func TestExport_AFailureIsAnErrorOrCutsTheResponse(t *testing.T) {
	export := func(from storage.ChunkQueryable) (w *httptest.ResponseRecorder, cause any) {
		w = httptest.NewRecorder()
		defer func() { cause = recover() }()
		newExporter(New(Options{Parser: parser.NewParser(parser.Options{}), Export: from})).
			ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?match[]=up&start=1&end=3", nil))
		return w, nil
	}
	broken := errors.New("the disk is gone")
	for text, c := range map[string]struct {
		from *fewSeries
		cut  bool
	}{
		"opening":              {&fewSeries{openErr: broken}, false},
		"before any sample":    {&fewSeries{err: broken}, false},
		"a warning":            {&fewSeries{warnings: annotations.New().Add(broken)}, true}, // follows the header of CSV
		"after many samples":   {&fewSeries{left: 100_000, err: broken}, true},
		"a warning after many": {&fewSeries{left: 100_000, warnings: annotations.New().Add(broken)}, true},
	} {
		w, cause := export(c.from)
		if c.cut != (cause == http.ErrAbortHandler) {
			t.Errorf("%s: %d, ended with %v", text, w.Code, cause)
		}
		if !c.cut && (w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "the disk is gone")) {
			t.Errorf("%s: %d %s", text, w.Code, w.Body)
		}
	}
}

func TestExport_SlotIsReleasedWithTheResponse(t *testing.T) {
	e := newExporter(New(Options{Parser: parser.NewParser(parser.Options{}), Export: &counted{}}))
	for range exportsMax + 1 {
		w := httptest.NewRecorder()
		if e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?match[]=up&start=1&end=3", nil)); w.Code != http.StatusOK || len(e.running) != 0 {
			t.Fatalf("%d %s; %d exports run", w.Code, w.Body, len(e.running))
		}
	}
}

// deadlineWriter records the deadlines of its writes, which fail with err.
type deadlineWriter struct {
	http.ResponseWriter
	deadlines []time.Time
	err       error
}

func (w *deadlineWriter) SetWriteDeadline(at time.Time) error {
	w.deadlines = append(w.deadlines, at)
	return nil
}
func (w *deadlineWriter) Write(p []byte) (int, error) { return len(p), w.err }

func TestExportWriter_DeadlineIsThatOfOneWrite(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		w := &deadlineWriter{ResponseWriter: httptest.NewRecorder(), err: io.ErrClosedPipe}
		e := &exportWriter{w: w, control: http.NewResponseController(w), stall: time.Hour, http2: http2, format: "csv"}
		before := time.Now()
		if n, err := e.Write([]byte("abc")); n != 3 || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%d, %v", n, err)
		}
		if len(w.deadlines) == 0 || w.deadlines[0].Before(before.Add(time.Hour)) || w.deadlines[0].After(time.Now().Add(time.Hour)) {
			t.Fatalf("deadlines %v", w.deadlines)
		}
		if removed := len(w.deadlines) == 2 && w.deadlines[1].IsZero(); removed != http2 {
			t.Errorf("HTTP/2 %v: deadlines %v", http2, w.deadlines)
		}
		h := w.Header()
		if h.Get("Content-Type") != "text/csv; charset=utf-8" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%v", h)
		}
	}
}

func TestHintLimit_IsOneMoreThanTheLimit(t *testing.T) {
	for limit, want := range map[int]int{0: 0, 1: 2, 10: 11, math.MaxInt - 1: math.MaxInt, math.MaxInt: math.MaxInt} {
		if got := hintLimit(limit); got != want {
			t.Errorf("%d: %d, want %d", limit, got, want)
		}
	}
}

// As many missing stores as missingMax are named; the warnings of the engine do not replace them.
func TestResponseAnnotations_MissingStoresAreLimited(t *testing.T) {
	for n, want := range map[int]string{missingMax + annotationsMax: fmt.Sprintf(`%d"]`, missingMax+annotationsMax-1), missingMax + annotationsMax + 1: `"1 more warning annotations omitted"]`} {
		notes := &responseAnnotations{}
		for i := range n {
			notes.list.Add(fmt.Errorf("store %06d", i))
		}
		s := &stream{}
		notes.append(s, true)
		if !strings.HasSuffix(string(s.b), want) {
			t.Errorf("%d missing: %.200s … %s", n, s.b, s.b[len(s.b)-100:])
		}
	}
}
