package httpapi_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	prometheusapi "github.com/prometheus/prometheus/web/api/v1"

	"github.com/ferula-io/ferula/internal/httpapi"
	prompromql "github.com/ferula-io/ferula/internal/promql"
)

const prefix = "/api/v1"

// external is the external URL of both servers.
var external = &url.URL{Scheme: "https", Host: "metrics.example.com:8443", Path: "/"}

const listenAddress = "0.0.0.0:9490"

// parts are the data sources of a pair of APIs.
type parts struct {
	engine    promql.QueryEngine // of ferula
	reference promql.QueryEngine // of the oracle
	parser    parser.Parser
	queryable storage.SampleAndChunkQueryable
	exemplars storage.ExemplarQueryable
	targets   stubTargets
	rules     ruleSource
	env       *testEnv
	origin    *regexp.Regexp
	ready     func(http.Handler) http.Handler
}

// newPair creates an engine with internal/promql for ferula and one as Prometheus'
// main does for the oracle.
func (w *testEnv) newPair(opts prompromql.Options) (pair, error) {
	quiet := slog.New(slog.DiscardHandler)
	ours, err := prompromql.New(opts, quiet, nil)
	if err != nil {
		return pair{}, err
	}
	maxSamples := opts.MaxSamples
	if maxSamples == 0 {
		maxSamples = 50_000_000
	}
	reference := promql.NewEngine(promql.EngineOpts{
		Logger:                   quiet,
		MaxSamples:               maxSamples,
		Timeout:                  2 * time.Minute,
		LookbackDelta:            5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		EnablePerStepStats:       opts.PerStepStats,
		EnableDelayedNameRemoval: opts.DelayedNameRemoval,
		EnableTypeAndUnitLabels:  opts.TypeAndUnitLabels,
		UseStartTimestamps:       opts.UseStartTimestamps,
		Parser:                   ours.Parser,
	})
	w.close = append(w.close, ours.Close, reference.Close)
	p := parts{
		engine: ours, reference: reference, parser: ours.Parser,
		queryable: w.db, exemplars: w.db, targets: fakeTargets(), rules: noRules{}, env: w,
	}
	return pair{ours: p.ferula(), oracle: p.prometheus(), parts: p}, nil
}

// parts returns a copy of the parts of the default pair, which a test may change.
func (w *testEnv) parts(t testing.TB) parts {
	t.Helper()
	return w.pairs["default"].parts
}

func (p parts) pair() pair { return pair{ours: p.ferula(), oracle: p.prometheus(), parts: p} }

func (p parts) ferula() http.Handler {
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{
		Engine: p.engine, Parser: p.parser, Queryable: p.queryable, Exemplars: p.exemplars,
		Targets: p.targets, Peer: p.prometheus(), Rules: true, TSDB: true,
		Config:    theConfig,
		BuildInfo: httpapi.BuildInfo{Version: "3.15.0", Revision: "abc", Branch: "HEAD", BuildUser: "me@<here>", BuildDate: "20260101", GoVersion: "go1.26", Program: "ferula 0.1"},
		Ready:     p.ready, CORSOrigin: p.origin,
	}).Register(mux, prefix)
	return mux
}

var (
	theStart = time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)
	theFlags = map[string]string{"query.timeout": "2m", "web.page-title": "a <b> & \"c\"", "": "empty name", "z<": "\u2028"}
)

func theConfig() config.Config {
	cfg, err := config.Load("global:\n  scrape_interval: 7s\n  external_labels:\n    \"odd<&>\": \"\\\"\\u2028\"\n", slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	return *cfg
}

func (p parts) prometheus() http.Handler {
	quiet := slog.New(slog.DiscardHandler)
	if p.origin == nil {
		p.origin = regexp.MustCompile("^(?:.*)$")
	}
	if p.ready == nil {
		p.ready = func(h http.Handler) http.Handler { return h }
	}
	a := prometheusapi.NewAPI(
		p.reference, p.queryable, nil, nil, p.exemplars,
		func(context.Context) prometheusapi.ScrapePoolsRetriever { return p.targets },
		func(context.Context) prometheusapi.TargetRetriever { return p.targets },
		func(context.Context) prometheusapi.AlertmanagerRetriever { return p.rules },
		theConfig, theFlags,
		prometheusapi.GlobalURLOptions{ListenAddress: listenAddress, Host: external.Host, Scheme: external.Scheme},
		func(next http.HandlerFunc) http.HandlerFunc { return p.ready(next).ServeHTTP },
		adminStats{p.env.db}, p.env.dir, false, false, 0, quiet,
		func(context.Context) prometheusapi.RulesRetriever { return p.rules },
		0, 0, 0, false, p.origin,
		func() (prometheusapi.RuntimeInfo, error) {
			return prometheusapi.RuntimeInfo{StartTime: theStart, CWD: "/data", Hostname: "h", ReloadConfigSuccess: true, LastConfigTime: theStart, CorruptionCount: 3, StorageRetention: "15d",
				GOMAXPROCS: runtime.GOMAXPROCS(0), GOMEMLIMIT: debug.SetMemoryLimit(-1), GOGC: os.Getenv("GOGC"), GODEBUG: os.Getenv("GODEBUG")}, nil
		},
		&prometheusapi.PrometheusVersion{Version: "3.15.0", Revision: "abc", Branch: "HEAD", BuildUser: "me@<here>", BuildDate: "20260101", GoVersion: "go1.26"},
		nil, nil, p.env.reg, nil, nil, false, nil, false, false, false, false,
		5*time.Minute, false, false, nil, nil, prometheusapi.OpenAPIOptions{}, p.parser,
	)
	router := route.New().WithPrefix(prefix)
	a.Register(router)
	return router
}

// headStatus and adminStats return the statistics of the head to either API.
type headStatus struct{ db *tsdb.DB }

func (s headStatus) HeadStats(byLabel string, limit int) (*tsdb.Stats, error) {
	return s.db.Head().Stats(byLabel, limit), nil
}
func (s headStatus) WALReplayStatus() tsdb.WALReplayStatus {
	return tsdb.WALReplayStatus{Min: 1, Max: 7, Current: 3}
}

type adminStats struct{ db *tsdb.DB }

var errNotHere = errors.New("not in this test")

func (s adminStats) CleanTombstones() error { return errNotHere }
func (s adminStats) Delete(context.Context, int64, int64, ...*labels.Matcher) error {
	return errNotHere
}
func (s adminStats) Snapshot(string, bool) error           { return errNotHere }
func (s adminStats) BlockMetas() ([]tsdb.BlockMeta, error) { return s.db.BlockMetas(), nil }

func (s adminStats) Stats(byLabel string, limit int) (*tsdb.Stats, error) {
	return headStatus(s).HeadStats(byLabel, limit)
}

func (s adminStats) WALReplayStatus() (tsdb.WALReplayStatus, error) {
	return headStatus(s).WALReplayStatus(), nil
}

// ruleSource has the rules and Alertmanagers of either API.
type ruleSource interface {
	prometheusapi.RulesRetriever
	prometheusapi.AlertmanagerRetriever
}

type noRules struct{}

func (noRules) RuleGroups() []*rules.Group           { return nil }
func (noRules) AlertingRules() []*rules.AlertingRule { return nil }
func (noRules) Alertmanagers() []*url.URL            { return nil }
func (noRules) DroppedAlertmanagers() []*url.URL     { return nil }

var _ prometheusapi.TargetRetriever = (*scrape.Manager)(nil)
