package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/export"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/backtest"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// BacktestOptions are the options of `ferula backtest`. Exactly one of URL and TSDBPath must be set.
type BacktestOptions struct {
	URL            string // of a ferula server
	HTTPConfigFile string // Prometheus' HTTP client configuration file; "": none
	TSDBPath       string // data directory of a Prometheus TSDB
	SandboxDir     string // directory for hard links while the WAL is read; "": chosen automatically

	Form        url.Values // of the request
	WriteBlocks string     // directory for blocks with the results of recording rules; "": none. Needs TSDBPath
	JSON        bool
	Query       promql.Options
	Logger      *slog.Logger
}

// backtestPath is the path of the endpoint.
const backtestPath = "/api/v1/rules/backtest"

// backtestBytesMax is the maximum size of a response.
const backtestBytesMax = 1 << 30

// Backtest evaluates rules over the past and writes what they have done to w.
func Backtest(ctx context.Context, o BacktestOptions, w io.Writer) error {
	if (o.URL == "") == (o.TSDBPath == "") {
		return errors.New("set one of --url and --tsdb.path")
	}
	if o.WriteBlocks != "" && o.TSDBPath == "" {
		return errors.New("--write-blocks needs --tsdb.path")
	}
	if files, err := os.ReadDir(o.WriteBlocks); o.WriteBlocks != "" && err == nil && len(files) > 0 {
		return fmt.Errorf("--write-blocks: the directory %s is not empty", o.WriteBlocks) // before hours of work
	}
	evaluate := o.local
	if o.URL != "" {
		evaluate = o.remote
	}
	body, err := evaluate(ctx)
	if err != nil {
		return err
	}
	var res backtested
	if err := json.Unmarshal(body, &res); err != nil {
		return fmt.Errorf("the response is not a result: %w", err)
	}
	if res.Status != "success" {
		return errors.New(cmp.Or(res.Error, "the response is not a result"))
	}
	if o.JSON {
		_, err = w.Write(append(body, '\n'))
		return err
	}
	return res.write(w)
}

// remote sends the request to a server.
func (o BacktestOptions) remote(ctx context.Context) ([]byte, error) {
	u, err := server.HTTPURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	client, err := httpClient(o.HTTPConfigFile, "http.config-file")
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath(backtestPath).String(),
		strings.NewReader(o.Form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	//lint:ignore gosec the address is a flag of the user
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, backtestBytesMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > backtestBytesMax:
		return nil, fmt.Errorf("the response is larger than %d bytes", backtestBytesMax)
	case !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json"):
		return nil, fmt.Errorf("%s: the server has no %s", resp.Status, backtestPath)
	}
	return body, nil
}

// local serves the request in this process, from a data directory.
func (o BacktestOptions) local(ctx context.Context) (_ []byte, err error) {
	db, err := tsdb.OpenReadOnly(o.TSDBPath, o.SandboxDir, o.Logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	engine, err := promql.New(o.Query, o.Logger, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	queries, err := newQueryEngine(EngineOptions{}, o.Query, engine, metrics.NewSet())
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	options := httpapi.Options{Engine: queries, Parser: engine.Parser, Queryable: readOnlyQueryable{db}, Logger: o.Logger}
	if o.WriteBlocks != "" {
		options.Recorded = o.writeBlocks
	}
	httpapi.New(options).Register(mux, strings.TrimSuffix(backtestPath, "/rules/backtest"))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, backtestPath, strings.NewReader(o.Form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	held := heldResponse{header: http.Header{}}
	mux.ServeHTTP(&held, req)
	return held.body.Bytes(), ctx.Err()
}

// heldResponse is a response in memory.
type heldResponse struct {
	header http.Header
	body   bytes.Buffer
}

func (h *heldResponse) Header() http.Header         { return h.header }
func (h *heldResponse) WriteHeader(int)             {}
func (h *heldResponse) Write(b []byte) (int, error) { return h.body.Write(b) }

// writeBlocks writes what rules have recorded as TSDB blocks.
func (o BacktestOptions) writeBlocks(ctx context.Context, h *backtest.History) error {
	mint, maxt, ok := h.Range()
	if !ok {
		return nil
	}
	_, err := export.Run(ctx, export.Options{
		Source: series.SourceOf{ChunkQueryable: h}, Output: o.WriteBlocks, Format: export.Blocks,
		StartMS: mint, EndMS: maxt, Tries: 1,
		Matchers: [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".+")}},
		Request:  "backtest", Now: time.Now, Random: rand.Reader, Warn: func(text string) { o.Logger.Warn(text) },
	})
	return err
}

// readOnlyQueryable reads a data directory with both engines.
type readOnlyQueryable struct{ *tsdb.ReadOnly }

// Querier implements storage.Queryable.
func (q readOnlyQueryable) Querier(mint, maxt int64) (storage.Querier, error) {
	return &readOnlyQuerier{Querier: storage.NoopQuerier(), from: q.ReadOnly, mint: mint, maxt: maxt}, nil
}

type readOnlyQuerier struct {
	storage.Querier
	from       *tsdb.ReadOnly
	mint, maxt int64
	open       []series.Querier
}

// Select implements storage.Querier.
func (q *readOnlyQuerier) Select(ctx context.Context, _ bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	raw, err := q.from.RawQuerier(ctx, q.mint, q.maxt)
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	q.open = append(q.open, raw)
	return series.ToSeriesSet(raw.Select(ctx, series.SelectOptions{}, matchers...))
}

func (q *readOnlyQuerier) Close() error {
	var errs []error
	for _, raw := range q.open {
		errs = append(errs, raw.Close())
	}
	return errors.Join(errs...)
}

// backtested is what is written of a response of the endpoint. Times are Unix seconds.
type backtested struct {
	Status, Error string
	Warnings      []string
	Data          struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Name, Type string
				Errors     *struct {
					Count   int
					FirstAt float64
					First   string
				}
				Alerts []struct {
					Labels    labels.Labels
					Intervals []struct {
						State, Value string
						Start, End   float64
						Open         bool
					}
				}
				Notifications []struct {
					At                  float64
					Labels, Annotations labels.Labels
					Resolved            bool
				}
				Truncated bool
				Counts    map[string]int
			}
		}
	}
}

// write writes the result as text.
func (b *backtested) write(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	stamp := func(seconds float64) string {
		return time.UnixMilli(int64(math.Round(seconds * 1000))).UTC().Format(time.RFC3339)
	}
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) } // Flush returns the error
	for _, text := range b.Warnings {
		line("warning: %s\n", text)
	}
	for _, g := range b.Data.Groups {
		for _, r := range g.Rules {
			name := strings.TrimPrefix(g.Name+"/"+r.Name, "/")
			if r.Errors != nil {
				line("%s: %d evaluations failed, the first at %s: %s\n", name, r.Errors.Count, stamp(r.Errors.FirstAt),
					r.Errors.First)
			}
			if r.Type == "recording" {
				line("%s: %d samples\n", name, r.Counts["samples"])
				continue
			}
			line("%s: alerts %d, fired %d, notifications %d, repeated %d\n", name, r.Counts["alerts"],
				r.Counts["firings"], r.Counts["notifications"], r.Counts["resends"])
			for _, a := range r.Alerts {
				line("  %s\n", a.Labels)
				for _, v := range a.Intervals {
					end := stamp(v.End)
					if v.Open {
						end = "still " + v.State
					}
					line("    %s\t%s\t%s\tvalue %s\n", v.State, stamp(v.Start), end, v.Value)
				}
			}
			for _, n := range r.Notifications {
				state := "firing"
				if n.Resolved {
					state = "resolved"
				}
				line("  notification\t%s\t%s\t%s\t%s\n", stamp(n.At), state, n.Labels, n.Annotations)
			}
			if r.Truncated {
				line("  further intervals or notifications are only counted\n")
			}
		}
	}
	return w.Flush()
}
