// Package backtest evaluates recording and alerting rules over a range in the past: what Prometheus' rule manager
// would have done, had the rules been loaded at the beginning of the range.
//
// Load parses a rule file, Run evaluates its groups at the timestamps of the rule manager:
//
//	rule file -> Load -> range queries in pieces -> state of each alert, step by step -> intervals, notifications
//	                  -> instant queries (rules that read what rules write) ^   `-> History -> later queries
//
// A rule that reads nothing that the file's rules write is evaluated by range queries, whose points are those of the
// instant queries of the rule manager. Every other rule is evaluated step by step over the storage and a History, the
// samples that the rules have written so far. States, labels, limits, retention and resends follow
// rules.AlertingRule. Templates may come from any client, so that their loops and texts have limits. Alerts of before
// the range are not restored. There is no HTTP and no JSON here.
package backtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/promql/rules"
)

// ErrLimit is the error of a backtest that would exceed a limit.
var ErrLimit = errors.New("limit of a backtest")

// ErrRules is the error of invalid rules.
var ErrRules = errors.New("invalid rules")

// Limits of a backtest.
const (
	EvaluationsMax   = 20_000_000    // evaluations of rules
	labelSetsMax     = 100_000       // label sets of alerts
	intervalsMax     = 100_000       // listed intervals; further ones are counted
	notificationsMax = 20_000        // listed notifications; further ones are counted
	textMax          = 64 << 20      // bytes of the labels of alerts, and of listed notifications
	writtenMax       = 20_000_000    // samples of a History
	pieceSteps       = 8192          // steps of a range query; halved if a query exceeds the engine's limits
	lastSecond       = 4_294_967_295 // of a range: times are in ns
	firstSteps       = 512           // steps of the first range query: nobody knows yet how many series it returns
	piecePoints      = 4_000_000     // points of all range queries whose results are held at once
)

// Options of a backtest.
type Options struct {
	Engine    promql.QueryEngine
	Parser    parser.Parser
	Queryable storage.Queryable
	QueryOpts promql.QueryOpts // may be nil

	// File is the name of the rule file. The slots at which Prometheus evaluates a group depend on it.
	File           string
	ExternalLabels labels.Labels
	ExternalURL    *url.URL      // in templates; nil: none
	Interval       time.Duration // of groups without one; 0: 1 minute
	QueryOffset    time.Duration // of groups without one
	ResendDelay    time.Duration // 0: 1 minute

	Start, End time.Time // of evaluations, inclusive
	Resends    bool      // list every notification, also repeated ones
	Record     bool      // return the History
}

// Rules are the parsed groups of one file.
type Rules struct{ groups []*promrules.Group }

// Load parses a rule file. Its errors, which wrap ErrRules, have group, rule, line and column.
func Load(content []byte, o Options) (*Rules, error) {
	parsed, err := rules.Parse(cmp.Or(o.File, "rules"), content, model.UTF8Validation, o.Parser,
		slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRules, err)
	}
	return load(parsed, o)
}

// Expression returns one alerting rule as a group without a name, whose evaluations begin at the start of the range
// instead of at the slot of a group.
func Expression(rule rulefmt.Rule, o Options) (*Rules, error) {
	var errs []error
	for _, fault := range rule.Validate(rulefmt.RuleNode{}, model.UTF8Validation, rules.Bounded{Parser: o.Parser}) {
		errs = append(errs, errors.Unwrap(&fault)) // there is no line
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrRules, errors.Join(errs...))
	}
	return load(&rulefmt.RuleGroups{Groups: []rulefmt.RuleGroup{{Rules: []rulefmt.Rule{rule}}}}, o)
}

func load(parsed *rulefmt.RuleGroups, o Options) (*Rules, error) {
	external := ""
	if o.ExternalURL != nil {
		external = o.ExternalURL.String()
	}
	manager := promrules.NewManager(&promrules.ManagerOptions{
		GroupLoader: loaded{o.Parser, parsed}, Parser: o.Parser,
		DefaultRuleQueryOffset: func() time.Duration { return o.QueryOffset },
	})
	byKey, errs := manager.LoadGroups(cmp.Or(o.Interval, time.Minute), o.ExternalLabels, external, nil, false, o.File)
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrRules, errors.Join(errs...))
	}
	all := &Rules{}
	for _, g := range parsed.Groups {
		group := byKey[promrules.GroupKey(o.File, g.Name)]
		all.groups = append(all.groups, group)
		for i, rule := range group.Rules() {
			if t := rule.Query().Type(); t != parser.ValueTypeVector && t != parser.ValueTypeScalar {
				return nil, fmt.Errorf("%w: group %q, rule %d, %q: the result is a %s, not a vector or a scalar",
					ErrRules, g.Name, i+1, rule.Name(), parser.DocumentedType(t))
			}
		}
	}
	return all, nil
}

// loaded passes parsed groups to Prometheus' loader, which resolves labels of groups and intervals.
type loaded struct {
	parser.Parser
	groups *rulefmt.RuleGroups
}

func (l loaded) Load(string, bool, model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	return l.groups, nil
}

func (l loaded) Parse(expr string) (parser.Expr, error) { return l.ParseExpr(expr) }

// Result is what the rules have done.
type Result struct {
	Groups   []Group
	Warnings annotations.Annotations
	History  *History // nil unless Options.Record is set; without alerts
}

// Group is the result of one group.
type Group struct {
	Name     string
	Interval time.Duration
	Rules    []Rule
}

// Rule is the result of one rule.
type Rule struct {
	Rule          promrules.Rule
	Alerts        []*Alert       // sorted by labels
	Notifications []Notification // in order of time
	Truncated     bool           // some intervals or notifications are counted, but not listed
	Counts        Counts
	// Errors counts evaluations that have failed. As in Prometheus they change no state, except by a limit of alerts.
	Errors  int
	Error   error // the first
	ErrorAt time.Time
}

// Counts of a rule's results. Notifications does not count Resends.
type Counts struct{ Alerts, Firings, Notifications, Resends, Samples int }

// Alert is one label set of an alerting rule.
type Alert struct {
	Labels    labels.Labels
	Intervals []Interval
}

// Interval is a time in which an alert was pending or firing. End is the evaluation that ended it, or the last one of
// the range if Open is set.
type Interval struct {
	State      promrules.AlertState
	Start, End time.Time
	Value      float64 // at the start
	Open       bool
}

// Notification is what Alertmanagers would have received. Resends counts how often it would have been repeated.
type Notification struct {
	At, StartsAt, EndsAt time.Time
	Labels, Annotations  labels.Labels
	Resolved             bool
	Resends              int
}

// Run evaluates the rules. It returns an error if a query is canceled, exceeds its timeout or fails in the storage:
// other failures are counted for their rule, as the rule manager would.
func Run(ctx context.Context, all *Rules, o Options) (*Result, error) {
	r := &run{opts: o}
	res, err := r.do(ctx, all)
	if errors.Is(err, errUnread) {
		r = &run{opts: o, allValues: true}
		res, err = r.do(ctx, all)
	}
	return res, err
}

// errUnread ends a run that needs a value of an alert at a time when alerts rarely need one: between its firing and its
// end.
var errUnread = errors.New("a value that was not read")

func (r *run) do(ctx context.Context, all *Rules) (*Result, error) {
	r.resendDelay, r.piece, r.pieceMax = cmp.Or(r.opts.ResendDelay, time.Minute), firstSteps, pieceSteps
	if err := r.prepare(all); err != nil {
		return nil, err
	}
	for _, lane := range r.lanes() {
		switch err := r.lane(ctx, lane); {
		case errors.Is(err, context.DeadlineExceeded):
			return nil, promql.ErrQueryTimeout("backtest")
		case err != nil:
			return nil, err
		}
	}
	return r.result(), nil
}

// run is a running backtest.
type run struct {
	opts        Options
	resendDelay time.Duration
	groups      []*group
	written     *History          // nil: nothing reads it
	from        storage.Queryable // the storage, with written
	piece       int               // steps of the next range queries
	pieceMax    int
	pieceOfRuns int  // steps that the engine allows a query whose runs it joins; 0: it does not join them
	allValues   bool // queries read values that are not likely needed, too
	unread      bool // one that was not read is needed
	warnings    annotations.Annotations

	labelSets, labelBytes, intervals, notifications, notificationBytes int
}

// group is a group with the time of its next evaluation.
type group struct {
	*promrules.Group
	next  time.Time
	rules []*rule
}

// rule is a rule with its state.
type rule struct {
	promrules.Rule
	group    *group
	alerting *alerting // nil: a recording rule
	// stepped: the rule is evaluated by instant queries: it reads what rules write, or depends on the range of a query.
	stepped  bool
	writes   bool
	previous map[*written]struct{} // series of the last evaluation
	fetched  fetched
	out      Rule
}

// prepare builds groups and finds which rules read what others write.
func (r *run) prepare(all *Rules) error {
	if start, end := r.opts.Start.Unix(), r.opts.End.Unix(); start < 0 || start > end || end > lastSecond {
		return fmt.Errorf("%w: the range must be between 1970 and %d", ErrLimit, time.Unix(lastSecond, 0).UTC().Year())
	}
	o := owned{alerts: map[string]bool{}, names: map[string]bool{}}
	var every []*rule
	steps := 0
	for _, g := range all.groups {
		group := &group{Group: g, next: r.opts.Start}
		if g.Name() != "" {
			group.next = g.EvalTimestamp(r.opts.Start.UnixNano())
			if group.next.Before(r.opts.Start) {
				group.next = group.next.Add(g.Interval())
			}
		}
		r.groups = append(r.groups, group)
		steps += len(g.Rules()) * (int(r.opts.End.Sub(group.next)/g.Interval()) + 1)
		for _, promRule := range g.Rules() {
			rule := &rule{Rule: promRule, group: group}
			if a, ok := promRule.(*promrules.AlertingRule); ok {
				if err := checkTemplates(g, a); err != nil {
					return err
				}
				rule.alerting = newAlerting(r, rule, a)
				o.alerts[a.Name()] = true
			} else {
				o.names[promRule.Name()] = true
			}
			group.rules = append(group.rules, rule)
		}
		every = append(every, group.rules...)
	}
	if steps > EvaluationsMax {
		return fmt.Errorf("%w: %d evaluations of rules, at most %d are allowed: choose a shorter range, fewer rules or "+
			"a longer interval", ErrLimit, steps, EvaluationsMax)
	}
	read := false
	for _, rule := range every {
		reads := o.readBy(rule.Query())
		rule.stepped = reads || dependsOnRange(rule.Query())
		read = read || reads || rule.alerting != nil && rule.alerting.queries
	}
	r.from = r.opts.Queryable
	if read || r.opts.Record {
		r.written = newHistory()
	}
	if read {
		first := r.opts.End.UnixMilli()
		for _, g := range r.groups {
			first = min(first, g.next.Add(-g.QueryOffset()).UnixMilli())
		}
		r.from = overlay{r.opts.Queryable, r.written, o, first}
	}
	for _, rule := range every {
		rule.writes = read || r.opts.Record && rule.alerting == nil
	}
	return nil
}

// dependsOnRange reports whether the points of a range query can differ from those of instant queries. A label value
// with such a text costs only time.
func dependsOnRange(expr parser.Expr) bool {
	text := expr.String()
	return strings.Contains(text, "start()") || strings.Contains(text, "end()") || strings.Contains(text, "step()") ||
		strings.Contains(text, "range()")
}

// lanes returns groups that must be evaluated together: all, if one rule reads what another one writes. Otherwise each
// rule is evaluated alone, so that the results of only one query are in memory.
func (r *run) lanes() [][]*group {
	if _, together := r.from.(overlay); together {
		return [][]*group{r.groups}
	}
	var lanes [][]*group
	for _, g := range r.groups {
		for i := range g.rules {
			alone := *g
			alone.rules = g.rules[i : i+1]
			lanes = append(lanes, []*group{&alone})
		}
	}
	return lanes
}

// lane evaluates groups in order of time, groups of the same time in the order of the file.
func (r *run) lane(ctx context.Context, groups []*group) error {
	defer func() {
		for _, g := range groups {
			for _, rule := range g.rules {
				rule.fetched.begin(r.opts.End)
			}
		}
	}()
	shortest := slices.MinFunc(groups, func(a, b *group) int { return cmp.Compare(a.Interval(), b.Interval()) }).Interval()
	r.piece = min(r.piece, r.pieceMax)
	for begin := r.opts.Start; !begin.After(r.opts.End); {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := r.opts.End.Add(1) // exclusive
		steps := int(end.Sub(begin)/shortest) + 1
		if pieces := (steps + r.piece - 1) / r.piece; pieces > 1 { // of the same size, to read less twice
			steps = (steps + pieces - 1) / pieces
			end = begin.Add(shortest * time.Duration(steps))
		}
		points, err := r.fetchAll(ctx, groups, end)
		if err != nil {
			return err
		}
		if points > piecePoints && r.piece > 1 {
			r.piece = max(1, min(steps, r.piece)/2)
			continue
		}
		for {
			g := slices.MinFunc(groups, func(a, b *group) int { return a.next.Compare(b.next) })
			if !g.next.Before(end) {
				break
			}
			for _, rule := range g.rules {
				if err := r.evaluate(ctx, rule, g.next); err != nil {
					return err
				}
			}
			if r.unread {
				return errUnread
			}
			g.next = g.next.Add(g.Interval())
		}
		r.piece = max(r.piece, min(steps*piecePoints/2/max(points, 1), max(r.pieceMax, r.pieceOfRuns)))
		begin = end
	}
	return nil
}

// fetchAll evaluates the expressions of all rules until end. It stops early if it has fetched too many points.
func (r *run) fetchAll(ctx context.Context, groups []*group, end time.Time) (points int, err error) {
	for _, g := range groups {
		n := 0
		if g.next.Before(end) {
			n = int((end.Sub(g.next)-1)/g.Interval()) + 1
		}
		for _, rule := range g.rules {
			if rule.stepped {
				continue
			}
			rule.fetched.begin(g.next)
			if points > piecePoints && r.piece > 1 {
				continue
			}
			if err := r.fetch(ctx, rule, 0, n); err != nil {
				return 0, err
			}
			points += n + rule.fetched.points
		}
	}
	return points, nil
}

// evaluate evaluates one rule at one time, as rules.Group.Eval does.
func (r *run) evaluate(ctx context.Context, rule *rule, ts time.Time) error {
	at := ts.Add(-rule.group.QueryOffset())
	if rule.stepped {
		rule.fetched.begin(ts)
		if err := r.fetch(ctx, rule, 0, 1); err != nil {
			return err
		}
	}
	f := &rule.fetched
	err := f.failed[int(ts.Sub(f.first)/rule.group.Interval())]
	var written []promql.Sample
	if err == nil {
		if rule.alerting != nil {
			written, err = rule.alerting.evaluate(ctx, f, ts, at)
		} else {
			written, err = rule.record(f, f.at(at.UnixMilli(), false), at)
		}
	}
	if fatal(err) {
		return err
	}
	if err != nil {
		if rule.out.Errors++; rule.out.Errors == 1 {
			rule.out.Error, rule.out.ErrorAt = err, ts
		}
		return nil
	}
	if !rule.writes {
		return nil
	}
	return r.written.write(rule, at.UnixMilli(), written)
}

// record returns the samples of a recording rule.
func (rule *rule) record(f *fetched, hits []hit, at time.Time) ([]promql.Sample, error) {
	if f.record == nil {
		f.record = make([]labels.Labels, 0, len(f.series))
	}
	b := labels.NewBuilder(labels.EmptyLabels())
	for _, metric := range f.series[len(f.record):] {
		b.Reset(metric)
		b.Set(labels.MetricName, rule.Name())
		rule.Labels().Range(func(l labels.Label) { b.Set(l.Name, l.Value) })
		f.record = append(f.record, b.Labels())
	}
	f.vector = f.vector[:0]
	for _, h := range hits {
		f.vector = append(f.vector, promql.Sample{Metric: f.record[h.series], T: at.UnixMilli(), F: h.value, H: h.histogram})
	}
	if f.vector.ContainsSameLabelset() {
		return nil, promrules.ErrDuplicateRecordingLabelSet
	}
	if limit := rule.group.Limit(); limit > 0 && len(f.vector) > limit {
		return nil, fmt.Errorf("exceeded limit of %d with %d series", limit, len(f.vector))
	}
	rule.out.Counts.Samples += len(f.vector)
	return f.vector, nil
}

// result closes what is still open and sorts the alerts.
func (r *run) result() *Result {
	res := &Result{Warnings: r.warnings}
	for _, g := range r.groups {
		group := Group{Name: g.Name(), Interval: g.Interval()}
		for _, rule := range g.rules {
			rule.out.Rule = rule.Rule
			if rule.alerting != nil {
				rule.alerting.finish()
			}
			group.Rules = append(group.Rules, rule.out)
		}
		res.Groups = append(res.Groups, group)
	}
	if r.opts.Record {
		res.History = r.written
		maps.DeleteFunc(r.written.byName, func(name string, _ []*written) bool {
			return name == alertsName || name == forStateName
		})
	}
	return res
}
