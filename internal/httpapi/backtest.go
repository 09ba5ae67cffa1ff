package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/promql/backtest"
)

const (
	backtestsMax = 2       // backtests that run at once
	ruleBytesMax = 1 << 20 // of a rule file
	defaultAlert = "Backtest"
)

// RuleOptions are the settings of rules that a configuration or flags have.
type RuleOptions struct {
	ExternalLabels labels.Labels
	Interval       time.Duration // 0: 1 minute
	QueryOffset    time.Duration
	ResendDelay    time.Duration // 0: 1 minute
}

// backtest evaluates rules over a range in the past.
func (a *API) backtest(r *http.Request) (response, *apiError) {
	select {
	case a.backtests <- struct{}{}:
		defer func() { <-a.backtests }()
	default:
		return response{}, &apiError{kindUnavailable, fmt.Errorf(
			"%d backtests are running, which is the limit: try again later", backtestsMax)}
	}
	opts, apiErr := a.backtestOptions(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	rules, apiErr := backtestRules(r, opts)
	if apiErr != nil {
		return response{}, apiErr
	}
	ctx, cancel, apiErr := a.queryContext(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	defer cancel()
	if a.opts.BacktestMax > 0 {
		ctx, cancel = context.WithTimeout(ctx, a.opts.BacktestMax)
		defer cancel()
	}
	r.Form.Set("query", cmp.Or(r.FormValue("expr"), r.FormValue("rules"))) // for the list of running queries
	ctx, run := a.begin(ctx, r, "backtest")
	defer a.running.end(run)
	from, queryOpts, apiErr := a.samplesQueryable(r, opts.QueryOpts, 0, false)
	if apiErr != nil {
		return response{}, apiErr
	}
	opts.Engine, opts.Queryable, opts.QueryOpts = estimated{a.opts.Engine, a, run}, a.watch(from, run), queryOpts
	opts.Record = a.opts.Recorded != nil
	res, err := backtest.Run(ctx, rules, opts)
	if err == nil && opts.Record {
		err = a.opts.Recorded(ctx, res.History)
	}
	if ended := run.err(); ended != nil {
		return response{}, queryError(ended)
	}
	if errors.As(err, new(promql.ErrQueryTimeout)) {
		err = fmt.Errorf("%w: choose a shorter range, fewer rules, a longer interval or a greater timeout%s", err,
			a.opts.Flags.Of("BacktestMax"))
	}
	if err != nil {
		if queueErr := queueError(err); queueErr != nil {
			return response{}, queueErr
		}
		return response{}, a.asTimeout(queryError(err))
	}
	return response{
		write:       func(s *stream) { s.backtest(res, opts) },
		annotations: &responseAnnotations{list: res.Warnings},
	}, nil
}

// backtestOptions parses all parameters but the rules.
func (a *API) backtestOptions(r *http.Request) (o backtest.Options, apiErr *apiError) {
	o = backtest.Options{Parser: a.opts.Parser, File: r.FormValue("file"), ExternalURL: a.opts.ExternalURL}
	if a.opts.RuleOptions != nil {
		of := a.opts.RuleOptions()
		o.ExternalLabels, o.Interval, o.QueryOffset, o.ResendDelay = of.ExternalLabels, of.Interval, of.QueryOffset,
			of.ResendDelay
	}
	o.Interval = cmp.Or(o.Interval, time.Minute)
	if o.Resends, apiErr = optional(r, "resends", false, strconv.ParseBool); apiErr != nil {
		return o, apiErr
	}
	if o.QueryOpts, apiErr = queryOptions(r); apiErr != nil {
		return o, apiErr
	}
	if o.Start, o.End, apiErr = requiredRange(r); apiErr != nil {
		return o, apiErr
	}
	for name, to := range map[string]*time.Duration{"interval": &o.Interval, "query_offset": &o.QueryOffset,
		"resend_delay": &o.ResendDelay} {
		if apiErr := optionalDuration(r, name, to); apiErr != nil {
			return o, apiErr
		}
	}
	if o.Interval < time.Millisecond || o.Interval%time.Millisecond != 0 {
		return o, invalidParameter("interval", fmt.Errorf("%s is not a positive number of milliseconds", o.Interval))
	}
	return o, nil
}

// optionalDuration parses a duration that must not be negative. It leaves to if the parameter is absent.
func optionalDuration(r *http.Request, name string, to *time.Duration) (apiErr *apiError) {
	*to, apiErr = optional(r, name, *to, func(text string) (time.Duration, error) {
		d, err := parseDuration(text)
		if err == nil && d < 0 {
			err = fmt.Errorf("%q is negative", text)
		}
		return d, err
	})
	return apiErr
}

// backtestRules parses `rules`, a rule file, or the parameters of one alert.
func backtestRules(r *http.Request, opts backtest.Options) (*backtest.Rules, *apiError) {
	content, expr := r.FormValue("rules"), r.FormValue("expr")
	if (content == "") == (expr == "") {
		return nil, badData(errors.New("exactly one of the parameters rules and expr is required"))
	}
	if content != "" {
		if len(content) > ruleBytesMax {
			return nil, invalidParameter("rules", fmt.Errorf("%d bytes, at most %d are allowed", len(content), ruleBytesMax))
		}
		rules, err := backtest.Load([]byte(content), opts)
		if err != nil {
			return nil, invalidParameter("rules", err)
		}
		return rules, nil
	}
	rule := rulefmt.Rule{Alert: cmp.Or(r.FormValue("alert"), defaultAlert), Expr: expr}
	for name, to := range map[string]*model.Duration{"for": &rule.For, "keep_firing_for": &rule.KeepFiringFor} {
		if apiErr := optionalDuration(r, name, (*time.Duration)(to)); apiErr != nil {
			return nil, apiErr
		}
	}
	for name, to := range map[string]*map[string]string{"label": &rule.Labels, "annotation": &rule.Annotations} {
		for _, pair := range r.Form[name] {
			key, value, ok := strings.Cut(pair, "=")
			if !ok {
				return nil, invalidParameter(name, fmt.Errorf("%q is not name=value", pair))
			}
			if *to == nil {
				*to = map[string]string{}
			}
			(*to)[key] = value
		}
	}
	rules, err := backtest.Expression(rule, opts)
	if err != nil {
		return nil, invalidParameter("expr", err)
	}
	return rules, nil
}

// estimated rejects a query whose selections read more than EstimateMax.
type estimated struct {
	promql.QueryEngine
	api *API
	run *runningQuery
}

// NewInstantQuery implements promql.QueryEngine.
func (e estimated) NewInstantQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, expr string,
	at time.Time) (promql.Query, error) {
	q, err := e.QueryEngine.NewInstantQuery(ctx, from, opts, expr, at)
	return e.check(ctx, q, err)
}

func (e estimated) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, expr string,
	start, end time.Time, step time.Duration) (promql.Query, error) {
	q, err := e.QueryEngine.NewRangeQuery(ctx, from, opts, expr, start, end, step)
	return e.check(ctx, q, err)
}

func (e estimated) check(ctx context.Context, q promql.Query, err error) (promql.Query, error) {
	if err != nil {
		return nil, err
	}
	if err := e.api.checkEstimate(ctx, q, e.run); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// backtest appends the result of a backtest, a rule at a time.
func (s *stream) backtest(res *backtest.Result, opts backtest.Options) {
	s.raw(`{"start":`)
	s.timestamp(opts.Start.UnixMilli())
	s.raw(`,"end":`)
	s.timestamp(opts.End.UnixMilli())
	s.raw(`,"groups":`)
	each(s, res.Groups, func(g *backtest.Group) {
		s.field(`{"name":`, g.Name)
		s.raw(`,"interval":`)
		s.number(g.Interval.Seconds())
		s.raw(`,"rules":`)
		each(s, g.Rules, s.backtestedRule)
		s.raw(`}`)
	})
	s.raw(`}`)
}

// backtestedRule appends the result of a rule. There may be so many intervals that reflection would take longer than
// the evaluations.
func (s *stream) backtestedRule(r *backtest.Rule) {
	set := func(key string, of labels.Labels) { s.raw(key); s.labels(of) }
	unix := func(key string, t time.Time) { s.raw(key); s.timestamp(t.UnixMilli()) }
	value := func(key string, of any) { s.raw(key); s.value(of) }
	s.field(`{"name":`, r.Rule.Name())
	s.field(`,"query":`, r.Rule.Query().String())
	set(`,"labels":`, r.Rule.Labels())
	if r.Errors > 0 {
		value(`,"errors":{"count":`, r.Errors)
		unix(`,"firstAt":`, r.ErrorAt)
		s.field(`,"first":`, r.Error.Error())
		s.raw(`}`)
	}
	alerting, ok := r.Rule.(*promrules.AlertingRule)
	if !ok {
		value(`,"type":"recording","counts":`, map[string]int{"samples": r.Counts.Samples})
		s.raw(`}`)
		return
	}
	value(`,"type":"alerting","for":`, alerting.HoldDuration().Seconds())
	value(`,"keepFiringFor":`, alerting.KeepFiringFor().Seconds())
	s.raw(`,"alerts":`)
	each(s, r.Alerts, func(a **backtest.Alert) {
		set(`{"labels":`, (*a).Labels)
		s.raw(`,"intervals":`)
		each(s, (*a).Intervals, func(v *backtest.Interval) {
			s.field(`{"state":`, v.State.String())
			unix(`,"start":`, v.Start)
			unix(`,"end":`, v.End)
			s.raw(`,"value":`)
			s.quoted(v.Value)
			if v.Open {
				s.raw(`,"open":true`)
			}
			s.raw(`}`)
		})
		s.raw(`}`)
	})
	s.raw(`,"notifications":`)
	each(s, r.Notifications, func(n *backtest.Notification) {
		unix(`{"at":`, n.At)
		set(`,"labels":`, n.Labels)
		set(`,"annotations":`, n.Annotations)
		s.raw(`,"startsAt":`)
		s.rfc3339(n.StartsAt)
		s.raw(`,"endsAt":`)
		s.rfc3339(n.EndsAt)
		s.raw(`,"resolved":`)
		s.boolean(n.Resolved)
		s.raw(`,"resends":`)
		s.integer(int64(n.Resends))
		s.raw(`}`)
	})
	value(`,"truncated":`, r.Truncated)
	value(`,"counts":`, map[string]int{"alerts": r.Counts.Alerts, "firings": r.Counts.Firings,
		"notifications": r.Counts.Notifications, "resends": r.Counts.Resends})
	s.raw(`}`)
}
