package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	backtestDays  = 90
	backtestPart  = 15  // days that are measured, and scaled
	managerEvals  = 100 // evaluations of the rule manager that are measured, and scaled
	backtestStep  = 30 * time.Second
	backtestWhat  = "rules on history, 15 d"
	managerWhat   = "rule manager, 100 evaluations"
	backtestFor   = time.Minute
	backtestAlert = "Backtest"
)

// backtestSpec are days of 1,000 series at an interval of 30 s, in a block such as old samples are in: no server compacts it
// while it is measured.
func backtestSpec() blocks.Spec {
	s := fewSpec()
	s.Series, s.StepMS, s.Seed = 1000, backtestStep.Milliseconds(), 7
	s.StartMS, s.BlockMS = startMS-startMS%yearBlockMS, yearBlockMS
	s.Samples = backtestPart * 24 * 3600 / 30
	return s
}

// backtestExpr is true for one sample in a hundred of the first series. Series have other scales: 212 of the thousand
// are always above it, 682 never.
func backtestExpr(s blocks.Spec) string {
	values := blocks.SpecSequence(s, 0, 1000)
	slices.Sort(values)
	return fmt.Sprintf("%s > %g", s.Metric, values[989])
}

func backtestRequest(s blocks.Spec, expr string, end int64) proc.Request {
	return proc.Request{Path: "/api/v1/rules/backtest", Query: url.Values{"expr": {expr},
		"for": {backtestFor.String()}, "interval": {backtestStep.String()},
		"alert": {backtestAlert}, "label": {"severity=page"}, "annotation": {"summary={{ $labels.pod }} has {{ $value }}"},
		"start": {area.Secs(s.StartMS)}, "end": {area.Secs(end)}}}
}

// backtests measures an alert over the past, and Prometheus' rule manager over a part of it. Both send the same number of
// notifications in this part.
func backtests(ctx context.Context, b *area.Bench, side *area.Side) error {
	if side.Name != ferula {
		return nil
	}
	s := backtestSpec()
	expr := backtestExpr(s)
	return b.With(ctx, b.TSDB(ctx, area.TSDB{Data: s}), func() error {
		if _, err := untilSummarized(ctx, b, side); err != nil {
			return err
		}
		dir, err := blocks.Ensure(ctx, b.Cache, s)
		if err != nil {
			return err
		}
		seconds, sent, err := manage(ctx, dir, expr, time.UnixMilli(s.StartMS))
		if err != nil {
			return err
		}
		b.Add(1, ferula, managerWhat, area.Seconds, seconds)
		var body bytes.Buffer
		part := s.StartMS + (managerEvals-1)*s.StepMS
		if _, err := side.Server.Get(ctx, backtestRequest(s, expr, part), &body); err != nil {
			return err
		}
		if found, err := notificationsIn(body.Bytes()); err != nil || found != sent || sent == 0 {
			return fmt.Errorf("%d notifications, the rule manager sends %d: %w", found, sent, err)
		}
		whole := backtestRequest(s, expr, s.EndMS()-s.StepMS)
		return b.InTurn(backtestWhat, []*area.Side{side}, func(round int, side *area.Side) error {
			return b.Costs(ctx, round, ferula, side.Server, area.Work{What: backtestWhat, Repeats: 1,
				Send: func() (proc.Response, error) { return side.Server.Get(ctx, whole, io.Discard) }})
		})
	}, side)
}

func concludeBacktests(b *area.Bench) {
	const scale = backtestDays / backtestPart
	took := b.Median(ferula, "last byte: "+backtestWhat) * scale
	b.Measure("engine/backtest-90d-s", took, "last byte: "+backtestWhat)
	manager := b.Median(ferula, managerWhat) * backtestDays * 24 * float64(time.Hour/backtestStep) / managerEvals
	b.Note(fmt.Sprintf("engine/backtest-90d-s: an alert that holds always for 212 of 1,000 series, for 682 never, and else for "+
		"one sample in a hundred, for 1 min, every 30 s, in one block, whose file with summaries of chunks was made before. "+
		"%d days are measured, and scaled to %d. Prometheus' rule manager, in a process of its own, would take "+
		"%.0f s, from %d evaluations.", backtestPart, backtestDays, manager, managerEvals))
}

// notificationsIn counts the notifications in a response, repeated ones included.
func notificationsIn(body []byte) (int, error) {
	var res struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					Counts struct{ Notifications, Resends int }
				}
			}
		}
	}
	if err := json.Unmarshal(body, &res); err != nil || len(res.Data.Groups) == 0 {
		return 0, errors.Join(err, fmt.Errorf("response %.200s", body))
	}
	c := res.Data.Groups[0].Rules[0].Counts
	return c.Notifications + c.Resends, nil
}

// manage runs Prometheus' rule manager over the first block of a directory.
func manage(ctx context.Context, dir, expr string, start time.Time) (seconds float64, sent int, err error) {
	logger := slog.New(slog.DiscardHandler)
	var first *tsdb.Block
	names, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
	if err != nil {
		return 0, 0, err
	}
	for _, name := range names {
		block, err := tsdb.OpenBlock(logger, filepath.Dir(name), nil, nil)
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, block.Close()) }()
		if block.MinTime() <= start.UnixMilli() && start.UnixMilli() < block.MaxTime() {
			first = block
		}
	}
	if first == nil {
		return 0, 0, fmt.Errorf("no block of %s: %w", start, os.ErrNotExist)
	}
	p := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{Logger: logger, MaxSamples: 50_000_000, Timeout: time.Minute, Parser: p})
	defer func() { err = errors.Join(err, engine.Close()) }()
	from := storage.QueryableFunc(func(mint, maxt int64) (storage.Querier, error) {
		return tsdb.NewBlockQuerier(first, mint, maxt)
	})
	parsed, err := p.ParseExpr(expr)
	if err != nil {
		return 0, 0, err
	}
	rule := rules.NewAlertingRule(backtestAlert, parsed, backtestFor, 0, labels.FromStrings("severity", "page"),
		labels.FromStrings("summary", "{{ $labels.pod }} has {{ $value }}"), labels.EmptyLabels(), "", true, logger)
	group := rules.NewGroup(rules.GroupOptions{Interval: backtestStep, Rules: []rules.Rule{rule}, Opts: &rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, from), Appendable: nowhere{}, Queryable: from, Logger: logger,
		ResendDelay: time.Minute, Context: ctx,
		NotifyFunc: func(_ context.Context, _ string, alerts ...*rules.Alert) { sent += len(alerts) },
	}})
	begun := time.Now()
	for i := range managerEvals {
		group.Eval(ctx, start.Add(time.Duration(i)*backtestStep))
	}
	return time.Since(begun).Seconds(), sent, rule.LastError()
}

// nowhere drops samples.
type nowhere struct{}

func (nowhere) Appender(context.Context) storage.Appender { return dropped{} }

type dropped struct{ storage.Appender }

func (dropped) SetOptions(*storage.AppendOptions) {}
func (dropped) Commit() error                     { return nil }

func (dropped) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, nil
}
