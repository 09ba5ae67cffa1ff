package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/prometheus/util/httputil"

	"github.com/ferula-io/ferula/internal/export"
	"github.com/ferula-io/ferula/internal/series"
)

const (
	// exportsMax is the maximum number of exports that run at once. Each keeps a buffer or a row group in memory.
	exportsMax = 4
	// exportStall is the timeout of one write to the client. Without it a client that reads nothing would keep a slot, and
	// the blocks of the storage open.
	exportStall = time.Minute
	// exportWindowsMax is the maximum number of windows of an export. Each window opens a querier, which may be a
	// remote read.
	exportWindowsMax = 1000
	exportWindow     = 2 * time.Hour // length of a window, unless the range needs more than exportWindowsMax of them
)

// exportTypes are the media types of the formats of /export.
var exportTypes = map[string]string{
	export.CSV:         "text/csv; charset=utf-8",
	export.JSONLines:   "application/jsonl",
	export.OpenMetrics: "application/openmetrics-text; version=1.0.0; charset=utf-8",
	export.Parquet:     "application/vnd.apache.parquet",
}

// exporter serves /export: the raw samples of series as a file, in the formats of `ferula read`. The response is
// streamed.
type exporter struct {
	api     *API
	running chan struct{} // has one element for each running export
	stall   time.Duration // timeout of one write
}

func newExporter(a *API) *exporter {
	return &exporter{api: a, running: make(chan struct{}, exportsMax), stall: exportStall}
}

func (e *exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := e.api
	httputil.SetCORS(w, a.opts.CORSOrigin, r)
	if err := parseForm(w, r); err != nil {
		a.respondError(w, err)
		return
	}
	opts, apiErr := e.options(r)
	if apiErr != nil {
		a.respondError(w, apiErr)
		return
	}
	out := &exportWriter{w: w, control: http.NewResponseController(w), stall: e.stall, http2: r.ProtoMajor == 2,
		format: opts.Format}
	if r.Method == http.MethodHead {
		out.begin() // the length is only known at the end of an export
		return
	}
	select {
	case e.running <- struct{}{}:
		defer func() { <-e.running }()
	default:
		a.respondError(w, &apiError{kindUnavailable, fmt.Errorf(
			"%d exports are running, which is the limit: try again later", exportsMax)})
		return
	}
	var warning string
	opts.Warn = func(text string) { warning = text }
	opts.Stdout = out
	_, err := export.Run(r.Context(), opts)
	if err == nil && warning != "" {
		err = fmt.Errorf("incomplete: %s", warning)
	}
	switch {
	case err == nil:
		out.begin() // an export without samples has written nothing
	case out.begun:
		a.opts.Logger.Info("Export failed", "err", err)
		panic(http.ErrAbortHandler) // a truncated response must not look complete
	case errors.Is(err, export.ErrOptions):
		a.respondError(w, badData(err))
	default:
		a.respondError(w, queryError(err))
	}
}

// options returns the options of an export. start and end are required: without them a request would export all data.
func (e *exporter) options(r *http.Request) (export.Options, *apiError) {
	opts := export.Options{Source: series.SourceOf{ChunkQueryable: e.api.opts.Export}, Output: export.Stdout,
		Tries: 1, Window: exportWindow,
		Now: e.api.opts.Now, Format: r.FormValue("format")}
	opts.Format = cmp.Or(opts.Format, export.CSV)
	if exportTypes[opts.Format] == "" {
		return opts, invalidParameter("format", fmt.Errorf("unknown format %q: use one of %s", opts.Format,
			strings.Join(sortedKeys(exportTypes), ", ")))
	}
	if len(r.Form["match[]"]) == 0 {
		return opts, badData(errors.New("no match[] parameter provided"))
	}
	matchers, err := e.api.parseMatchers(r)
	if err != nil {
		return opts, invalidParameter("match[]", err)
	}
	opts.Matchers = matchers
	start, end, apiErr := requiredRange(r)
	if apiErr != nil {
		return opts, apiErr
	}
	opts.StartMS, opts.EndMS = milliseconds(start), milliseconds(end)
	if ms := opts.EndMS - opts.StartMS; ms > exportWindowsMax*exportWindow.Milliseconds() &&
		ms < math.MaxInt64/time.Millisecond.Nanoseconds() {
		opts.Window = time.Duration(ms/exportWindowsMax+1) * time.Millisecond
	}
	return opts, nil
}

// exportWriter sends the headers of the file with its first bytes. An error before the first byte can therefore have
// its own status.
type exportWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration // timeout of one write
	http2   bool
	format  string
	begun   bool
}

func (e *exportWriter) begin() {
	if e.begun {
		return
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", exportTypes[e.format])
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": "export." + e.format}))
	h.Set("X-Content-Type-Options", "nosniff")
}

func (e *exportWriter) Write(p []byte) (int, error) {
	e.begin()
	_ = e.control.SetWriteDeadline(time.Now().Add(e.stall)) // an error only if the writer has no deadlines, as in tests
	n, err := e.w.Write(p)
	if e.http2 { // an expired deadline resets the stream, even between writes
		_ = e.control.SetWriteDeadline(time.Time{})
	}
	return n, err
}
