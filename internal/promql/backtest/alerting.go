package backtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/template"

	"github.com/ferula-io/ferula/internal/promql/columns"
)

const (
	alertsName   = "ALERTS"
	forStateName = "ALERTS_FOR_STATE"
	// resolvedRetention is how long the rule manager sends a resolved alert.
	resolvedRetention = 15 * time.Minute
	// never is a time before all others, in ns.
	never = math.MinInt64 / 2
	// resending is alert.due of a firing alert that is only sent again: its resends are counted when its run ends.
	resending = math.MaxInt64
)

// alerting is the state of an alerting rule.
type alerting struct {
	run            *run
	rule           *rule
	def            *promrules.AlertingRule
	externalLabels map[string]string
	perSeries      bool // the labels of an alert depend on the labels of its series only
	queries        bool // a template runs queries
	query          promrules.QueryFunc

	// stepwise: every element of a result is looked at. Otherwise only the first one of those at successive steps is.
	stepwise   bool
	evaluation int
	known      map[uint64]*alert // by hash of labels
	active     []waiting
	found      []*alert // of the current evaluation
	due        []*alert // active ones that the current evaluation may change
}

// waiting is an active alert that no evaluation before wake changes, in ns. The time is here, not in the alert, because
// each evaluation compares it.
type waiting struct {
	wake int64
	*alert
}

// alert is one label set. Times are in ns; never is Prometheus' zero time.
type alert struct {
	labels                                              labels.Labels
	state                                               promrules.AlertState
	active                                              bool
	seenIn                                              int   // the evaluation that has found it last
	until                                               int64 // the last evaluation known to have the label set
	due                                                 int64 // until then, an evaluation that has it changes nothing
	activeAt, firedAt, resolvedAt, lastSent, keepFiring int64

	last        source // of the annotations
	annotations labels.Labels

	out       Alert
	begun     bool // it was pending or firing once after an evaluation
	open      bool // the last interval of out
	unlisted  bool // it was not listed
	sent      int  // index of the last listed notification, which counts resends; -1: it is not listed
	sentState promrules.AlertState
}

// source is what the templates of an alert are expanded with.
type source struct {
	metric labels.Labels
	hit    hit
	at     time.Time
}

// to moves to the element at a time in the run, or to the last one before.
func (s *source) to(now int64) {
	if len(s.hit.run) < 2 {
		return
	}
	ms := min(s.hit.ms+(now-s.at.UnixNano())/1e6, s.hit.run[len(s.hit.run)-1].T)
	s.at = s.at.Add(time.Duration(ms-s.hit.ms) * time.Millisecond)
	s.hit.run = s.hit.run[sort.Search(len(s.hit.run), func(i int) bool { return s.hit.run[i].T > ms })-1:]
	s.hit.ms, s.hit.value = ms, s.hit.run[0].F
}

const (
	insertLabel = `\{\{[ \t\r\n]*(?:\$labels|\.Labels)\.([a-zA-Z_]\w*)[ \t\r\n]*\}\}`
	insertValue = `\{\{[ \t\r\n]*(?:\$value|\.Value)[ \t\r\n]*\}\}`
)

var (
	inserts = regexp.MustCompile(insertLabel + "|" + insertValue)
	// labelsOnly are texts without templates, or with templates that only insert labels.
	labelsOnly = regexp.MustCompile(`^([^{]|\{[^{]|` + insertLabel + `)*\{?$`)
	// insertsOnly are texts with templates that only insert labels and the value.
	insertsOnly = regexp.MustCompile(`^([^{]|\{[^{]|` + insertLabel + `|` + insertValue + `)*\{?$`)
)

func newAlerting(r *run, rule *rule, def *promrules.AlertingRule) *alerting {
	a := &alerting{run: r, rule: rule, def: def, externalLabels: r.opts.ExternalLabels.Map(), perSeries: true,
		known: map[uint64]*alert{}}
	def.Labels().Range(func(l labels.Label) {
		a.perSeries = a.perSeries && labelsOnly.MatchString(l.Value)
		a.queries = a.queries || queries(l.Value)
	})
	def.Annotations().Range(func(l labels.Label) { a.queries = a.queries || queries(l.Value) })
	a.stepwise = a.queries || !a.perSeries || rule.group.Limit() > 0
	a.query = func(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
		return promrules.EngineQueryFunc(r.opts.Engine, r.from)(ctx, expr, at)
	}
	return a
}

func queries(text string) bool {
	return strings.Contains(text, "{{") && strings.Contains(text, "query")
}

// evaluate does what rules.AlertingRule.Eval and sendAlerts do. It returns the samples of ALERTS and
// ALERTS_FOR_STATE if they are kept.
func (a *alerting) evaluate(ctx context.Context, f *fetched, ts, at time.Time) (promql.Vector, error) {
	runs := !a.stepwise && !a.rule.writes
	hits := f.at(at.UnixMilli(), runs)
	if len(hits) == 0 && len(a.active) == 0 {
		return nil, nil
	}
	now := ts.UnixNano()
	a.evaluation++
	a.found = a.found[:0]
	for _, h := range hits {
		al, err := a.alertOf(ctx, f, h, ts)
		if err != nil {
			return nil, err
		}
		if runs && (al.until >= now || al.seenIn == a.evaluation) {
			a.stepwise = true
			f.rewind(at.UnixMilli())
			for i, al := range a.active { // this evaluation may fail: runs end before it
				a.active[i].wake = never
				if al.until >= now {
					al.until = now - int64(a.rule.group.Interval())
					al.last.to(al.until)
					al.last.hit.run = nil
				}
			}
			return a.evaluate(ctx, f, ts, at)
		}
		if al.seenIn == a.evaluation {
			return nil, promrules.ErrDuplicateAlertLabelSet
		}
		al.seenIn = a.evaluation
		a.found = append(a.found, al)
	}
	for i, al := range a.found {
		a.resend(al)
		al.last = source{f.series[hits[i].series], hits[i], ts}
		al.due, al.until = now, now
		if n := len(hits[i].run); n > 1 {
			al.until += (hits[i].run[n-1].T - hits[i].ms) * int64(time.Millisecond)
		}
		if a.queries { // the storage of this time is needed
			al.annotations = a.annotations(ctx, al)
		}
		if al.active && al.state != promrules.StateInactive {
			continue
		}
		if !al.active {
			al.active = true
			a.active = append(a.active, waiting{never, al})
		}
		al.state, al.activeAt = promrules.StatePending, now
		al.firedAt, al.resolvedAt, al.lastSent, al.keepFiring = never, never, never, never
		a.begin(al, ts)
	}
	pending, vector := a.step(ts, at)
	if limit := a.rule.group.Limit(); limit > 0 && pending > limit {
		for _, al := range a.active {
			a.end(al.alert, ts) // it is forgotten: what began now has not happened
			al.active = false
		}
		a.active = a.active[:0]
		return nil, fmt.Errorf("exceeded limit of %d with %d alerts", limit, pending)
	}
	for _, al := range a.due {
		al.begun = true
		if al.firedAt == now && al.state == promrules.StateFiring {
			a.rule.out.Counts.Firings++
		}
	}
	a.send(ctx, ts)
	return vector, ctx.Err()
}

// step changes the states of all active alerts.
func (a *alerting) step(ts, at time.Time) (pending int, vector promql.Vector) {
	now := ts.UnixNano()
	keepFor, hold := a.def.KeepFiringFor(), int64(a.def.HoldDuration())
	for pending < len(a.active) && a.active[pending].wake > now {
		pending++
	}
	left := a.active[:pending]
	a.due = a.due[:0]
	for _, al := range a.active[pending:] {
		if al.wake <= now && al.until >= now && al.due > now {
			al.wake = min(al.until+1, al.due)
		}
		if al.wake > now {
			left = append(left, al)
			pending++
			continue
		}
		if al.until < now {
			a.resend(al.alert)
			keep := false
			if al.state == promrules.StateFiring && keepFor > 0 {
				if al.keepFiring == never {
					al.keepFiring = now
				}
				keep = now-al.keepFiring < int64(keepFor)
			}
			if al.state == promrules.StatePending ||
				al.resolvedAt != never && now-al.resolvedAt > int64(resolvedRetention) {
				al.active = false
			}
			if al.state != promrules.StateInactive && !keep {
				al.state, al.resolvedAt = promrules.StateInactive, now
				a.end(al.alert, ts)
			}
			if !keep {
				if al.active {
					left, a.due = append(left, al), append(a.due, al.alert)
				}
				continue
			}
		} else {
			al.keepFiring = never
		}
		left, a.due = append(left, al), append(a.due, al.alert)
		pending++
		if al.state == promrules.StatePending && now-al.activeAt >= hold {
			al.state, al.firedAt = promrules.StateFiring, now
			a.end(al.alert, ts)
			a.begin(al.alert, ts)
		}
		if a.rule.writes {
			vector = append(vector, a.sample(al.alert, alertsName, at, 1),
				a.sample(al.alert, forStateName, at, float64(time.Unix(0, al.activeAt).Unix())))
		}
	}
	clear(a.active[len(left):])
	a.active = left
	return pending, vector
}

func (a *alerting) sample(al *alert, name string, at time.Time, v float64) promql.Sample {
	b := labels.NewBuilder(a.def.Labels())
	al.labels.Range(func(l labels.Label) { b.Set(l.Name, l.Value) })
	b.Set(labels.MetricName, name)
	b.Set(labels.AlertName, a.def.Name())
	if name == alertsName {
		b.Set("alertstate", al.state.String())
	}
	return promql.Sample{Metric: b.Labels(), T: at.UnixMilli(), F: v}
}

// alertOf returns the alert of an element of a result.
func (a *alerting) alertOf(ctx context.Context, f *fetched, h hit, ts time.Time) (*alert, error) {
	if a.perSeries {
		if len(f.alerts) < len(f.series) {
			f.alerts = append(f.alerts, make([]*alert, len(f.series)-len(f.alerts))...)
		}
		if al := f.alerts[h.series]; al != nil {
			return al, nil
		}
	}
	from := source{f.series[h.series], h, ts}
	b := labels.NewBuilder(from.metric)
	b.Del(labels.MetricName)
	a.def.Labels().Range(func(l labels.Label) { b.Set(l.Name, a.expand(ctx, l.Value, from)) })
	b.Set(labels.AlertName, a.def.Name())
	set := b.Labels()
	key := set.Hash()
	al := a.known[key]
	if al == nil {
		if a.run.labelSets++; a.run.labelSets > labelSetsMax {
			return nil, fmt.Errorf("%w: rule %q: the alerts have more than %d label sets", ErrLimit, a.def.Name(), labelSetsMax)
		}
		if a.run.labelBytes += size(set); a.run.labelBytes > textMax {
			return nil, fmt.Errorf("%w: rule %q: the labels of alerts have more than %d bytes", ErrLimit, a.def.Name(), textMax)
		}
		al = &alert{labels: set, out: Alert{Labels: set}, sent: -1}
		a.known[key] = al
	}
	if a.perSeries {
		f.alerts[h.series] = al
	}
	return al, nil
}

// expand expands a template as rules.AlertingRule does.
func (a *alerting) expand(ctx context.Context, text string, from source) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	if from.hit.histogram == nil && insertsOnly.MatchString(text) { // a tenth of the time that the template takes
		return inserts.ReplaceAllStringFunc(text, func(action string) string {
			if name := inserts.FindStringSubmatch(action)[1]; name != "" {
				return from.metric.Get(name)
			}
			return fmt.Sprint(from.hit.value)
		})
	}
	const defs = "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}" +
		"{{$value := .Value}}"
	external := ""
	if a.run.opts.ExternalURL != nil {
		external = a.run.opts.ExternalURL.String()
	}
	data := template.AlertTemplateData(from.metric.Map(), a.externalLabels, external,
		promql.Sample{Metric: from.metric, F: from.hit.value, H: from.hit.histogram})
	name := "__alert_" + a.def.Name()
	expand := func(all string) (string, error) {
		te := template.NewTemplateExpander(ctx, all, name, data, model.Time(from.at.UnixMilli()),
			template.QueryFunc(a.query), a.run.opts.ExternalURL, nil)
		limit(ctx, te, text)
		return te.Expand()
	}
	all := defs + text
	safe := bounded(name, all)
	expanded, err := expand(safe)
	if err != nil && safe != all && !errors.Is(err, errExpansion) && ctx.Err() == nil {
		expanded, err = expand(all) // it fails, too, and its error has the columns of the text
	}
	if err != nil {
		return fmt.Sprintf("<error expanding template: %s>", err)
	}
	return expanded
}

func (a *alerting) annotations(ctx context.Context, al *alert) labels.Labels {
	a.value(al)
	b := labels.NewScratchBuilder(a.def.Annotations().Len())
	a.def.Annotations().Range(func(l labels.Label) { b.Add(l.Name, a.expand(ctx, l.Value, al.last)) })
	return b.Labels()
}

// value returns the value of an alert. If the engine has not read it, the run ends with errUnread.
func (a *alerting) value(al *alert) float64 {
	a.run.unread = a.run.unread || !a.run.allValues && columns.Unread(al.last.hit.value)
	return al.last.hit.value
}

// size returns the bytes of a label set.
func size(set labels.Labels) (n int) {
	set.Range(func(l labels.Label) { n += len(l.Name) + len(l.Value) })
	return n
}

// begin begins an interval.
func (a *alerting) begin(al *alert, ts time.Time) {
	al.open = true
	al.last.to(ts.UnixNano())
	if al.unlisted = a.run.intervals >= intervalsMax; al.unlisted {
		a.rule.out.Truncated = true
		return
	}
	a.run.intervals++
	al.out.Intervals = append(al.out.Intervals, Interval{State: al.state, Start: ts, Value: a.value(al)})
}

// end ends an interval. An alert that fires at once was never pending.
func (a *alerting) end(al *alert, ts time.Time) {
	if !al.open {
		return
	}
	al.open = false
	if al.unlisted {
		return
	}
	last := len(al.out.Intervals) - 1
	if al.out.Intervals[last].Start.Equal(ts) {
		al.out.Intervals = al.out.Intervals[:last]
		a.run.intervals--
		return
	}
	al.out.Intervals[last].End = ts
}

// send notes the notifications of one evaluation.
func (a *alerting) send(ctx context.Context, ts time.Time) {
	now := ts.UnixNano()
	for _, al := range a.due {
		if al.state == promrules.StatePending {
			al.due = al.activeAt + int64(a.def.HoldDuration())
			continue
		}
		next := al.lastSent + int64(a.run.resendDelay) + 1
		if al.due = next; al.state == promrules.StateFiring && !a.run.opts.Resends {
			al.due = resending
		}
		if al.resolvedAt <= al.lastSent && next > now {
			continue
		}
		if al.due != resending {
			al.due = now + int64(a.run.resendDelay) + 1
		}
		again := al.lastSent != never && al.sentState == al.state
		al.lastSent, al.sentState = now, al.state
		counts := &a.rule.out.Counts
		if again {
			counts.Resends++
		} else {
			counts.Notifications++
			al.sent = -1
		}
		if again && !a.run.opts.Resends {
			if al.sent >= 0 {
				a.rule.out.Notifications[al.sent].Resends++
			}
			continue
		}
		if a.run.notifications >= notificationsMax || a.run.notificationBytes > textMax {
			a.rule.out.Truncated = true
			continue
		}
		n := Notification{At: ts, Labels: al.labels, Annotations: al.annotations, StartsAt: time.Unix(0, al.firedAt).UTC(),
			EndsAt: ts.Add(4 * max(a.rule.group.Interval(), a.run.resendDelay)), Resolved: al.resolvedAt != never}
		if !a.queries {
			al.last.to(now)
			n.Annotations = a.annotations(ctx, al)
		}
		if n.Resolved {
			n.EndsAt = time.Unix(0, al.resolvedAt).UTC()
		}
		a.run.notifications++
		a.run.notificationBytes += size(n.Labels) + size(n.Annotations)
		al.sent = len(a.rule.out.Notifications)
		a.rule.out.Notifications = append(a.rule.out.Notifications, n)
	}
}

// resend counts the resends since the last one, at evaluations that have not looked at the alert.
func (a *alerting) resend(al *alert) {
	if al.due != resending {
		return
	}
	interval := int64(a.rule.group.Interval())
	every := (int64(a.run.resendDelay)/interval + 1) * interval
	n := max(0, al.until-al.lastSent) / every
	al.due, al.lastSent = never, al.lastSent+n*every
	a.rule.out.Counts.Resends += int(n)
	if al.sent >= 0 {
		a.rule.out.Notifications[al.sent].Resends += int(n)
	}
}

// finish closes the intervals that are still open, and sorts the alerts.
func (a *alerting) finish() {
	for _, al := range a.known {
		a.resend(al)
		if al.begun {
			a.rule.out.Counts.Alerts++
		}
		if n := len(al.out.Intervals); n > 0 {
			if al.open && !al.unlisted {
				last := &al.out.Intervals[n-1]
				last.End, last.Open = a.run.opts.End, true
			}
			a.rule.out.Alerts = append(a.rule.out.Alerts, &al.out)
		}
	}
	slices.SortFunc(a.rule.out.Alerts, func(x, y *Alert) int { return labels.Compare(x.Labels, y.Labels) })
}
