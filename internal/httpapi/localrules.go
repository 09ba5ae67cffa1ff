package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
)

// Rules are the rules that this server evaluates and the Alertmanagers that receive its
// alerts.
type Rules interface {
	RuleGroups() []*rules.Group // ordered by file and name
	Alertmanagers() []*url.URL
	DroppedAlertmanagers() []*url.URL
}

// ruleFilter is the selection of a request for rules. Empty lists match everything.
type ruleFilter struct {
	names, groups, files []string
	matchers             [][]*labels.Matcher // one of the sets must match the labels of a rule
	alerting, recording  bool
	excludeAlerts        bool
	groupsMax            int    // groups in the response; 0: no limit
	token                string // group_next_token: names the first group of the response; "": all groups
}

// ruleFilter parses the parameters of /rules, with Prometheus' errors.
func (a *API) ruleFilter(r *http.Request) (ruleFilter, *apiError) {
	f := ruleFilter{names: r.Form["rule_name[]"], groups: r.Form["rule_group[]"], files: r.Form["file[]"]}
	var err error
	if f.matchers, err = a.parseMatchers(r); err != nil {
		return f, badData(err)
	}
	kind := strings.ToLower(r.FormValue("type"))
	f.alerting, f.recording = kind == "" || kind == "alert", kind == "" || kind == "record"
	if !f.alerting && !f.recording {
		return f, invalidParameter("type", fmt.Errorf("not supported value %q", kind))
	}
	if text := strings.ToLower(r.FormValue("exclude_alerts")); text != "" {
		if f.excludeAlerts, err = strconv.ParseBool(text); err != nil {
			return f, invalidParameter("exclude_alerts", fmt.Errorf("error converting exclude_alerts: %w", err))
		}
	}
	limit, token := r.FormValue("group_limit"), r.FormValue("group_next_token")
	if limit == "" {
		if token != "" {
			return f, invalidParameter("group_next_token",
				errors.New("group_limit needs to be present in order to paginate over the groups"))
		}
		return f, nil
	}
	n, err := strconv.ParseInt(limit, 10, 32)
	if err != nil {
		return f, invalidParameter("group_limit", fmt.Errorf("group_limit needs to be a valid number: %w", err))
	}
	if n <= 0 {
		return f, invalidParameter("group_limit", errors.New("group_limit needs to be greater than 0"))
	}
	f.groupsMax, f.token = int(n), token
	return f, nil
}

// rulesOf returns the selected rules of a group; none if the group is not selected.
func (f *ruleFilter) rulesOf(g *rules.Group) []rules.Rule {
	selected := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	if !selected(f.groups, g.Name()) || !selected(f.files, g.File()) {
		return nil
	}
	var found []rules.Rule
	for _, rule := range g.Rules(f.matchers...) {
		_, alerting := rule.(*rules.AlertingRule)
		if selected(f.names, rule.Name()) && (f.alerting && alerting || f.recording && !alerting) {
			found = append(found, rule)
		}
	}
	return found
}

// groupToken identifies a group in group_next_token.
func groupToken(g *rules.Group) string {
	sum := sha256.Sum256([]byte(g.File() + ";" + g.Name()))
	return hex.EncodeToString(sum[:])
}

// localRules returns the rules that this server evaluates.
func (a *API) localRules(r *http.Request) (response, *apiError) {
	f, apiErr := a.ruleFilter(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	groups := a.opts.Rules.RuleGroups()
	if f.token != "" {
		at := slices.IndexFunc(groups, func(g *rules.Group) bool { return groupToken(g) == f.token })
		if at < 0 {
			return response{}, invalidParameter("group_next_token",
				fmt.Errorf("invalid group_next_token '%v'. were rule groups changed?", f.token))
		}
		groups = groups[at:]
	}
	return response{write: func(s *stream) {
		s.raw(`{"groups":[`)
		n, next := 0, ""
		for _, g := range groups {
			selected := f.rulesOf(g)
			if len(selected) == 0 {
				continue
			}
			if f.groupsMax > 0 && n == f.groupsMax {
				next = groupToken(g)
				break
			}
			s.comma(n)
			s.localGroup(g, selected, f.excludeAlerts)
			n++
		}
		s.raw(`]`)
		if next != "" {
			s.field(`,"groupNextToken":`, next)
		}
		s.raw(`}`)
	}}, nil
}

func (s *stream) localGroup(g *rules.Group, selected []rules.Rule, excludeAlerts bool) {
	s.field(`{"name":`, g.Name())
	s.field(`,"file":`, g.File())
	s.raw(`,"rules":[`)
	for i, rule := range selected {
		s.comma(i)
		if alerting, ok := rule.(*rules.AlertingRule); ok {
			s.localAlertingRule(alerting, excludeAlerts)
		} else {
			s.field(`{"name":`, rule.Name())
			s.field(`,"query":`, rule.Query().String())
			s.raw(`,"labels":`)
			s.labels(rule.Labels())
			s.localEvaluation(rule)
			s.raw(`,"type":"recording"}`)
		}
		s.flushIfFull()
	}
	s.raw(`],"interval":`)
	s.number(g.Interval().Seconds())
	s.raw(`,"limit":`)
	s.integer(int64(g.Limit()))
	s.raw(`,"evaluationTime":`)
	s.number(g.GetEvaluationTime().Seconds())
	s.raw(`,"lastEvaluation":`)
	s.rfc3339(g.GetLastEvaluation())
	s.raw(`}`)
}

func (s *stream) localAlertingRule(rule *rules.AlertingRule, excludeAlerts bool) {
	s.field(`{"state":`, rule.State().String())
	s.field(`,"name":`, rule.Name())
	s.field(`,"query":`, rule.Query().String())
	s.raw(`,"duration":`)
	s.number(rule.HoldDuration().Seconds())
	s.raw(`,"keepFiringFor":`)
	s.number(rule.KeepFiringFor().Seconds())
	s.raw(`,"labels":`)
	s.labels(rule.Labels())
	s.raw(`,"annotations":`)
	s.labels(rule.Annotations())
	s.raw(`,"alerts":`)
	if excludeAlerts {
		s.raw(`null`)
	} else {
		s.raw(`[`)
		for i, alert := range rule.ActiveAlerts() {
			s.comma(i)
			s.localAlert(alert)
		}
		s.raw(`]`)
	}
	s.localEvaluation(rule)
	s.raw(`,"type":"alerting"}`)
}

// localEvaluation appends health, error, duration and time of a rule's last evaluation.
func (s *stream) localEvaluation(rule rules.Rule) {
	s.field(`,"health":`, string(rule.Health()))
	if err := rule.LastError(); err != nil && err.Error() != "" {
		s.field(`,"lastError":`, err.Error())
	}
	s.raw(`,"evaluationTime":`)
	s.number(rule.GetEvaluationDuration().Seconds())
	s.raw(`,"lastEvaluation":`)
	s.rfc3339(rule.GetEvaluationTimestamp())
}

func (s *stream) localAlert(alert *rules.Alert) {
	s.raw(`{"labels":`)
	s.labels(alert.Labels)
	s.raw(`,"annotations":`)
	s.labels(alert.Annotations)
	s.field(`,"state":`, alert.State.String())
	s.raw(`,"activeAt":`)
	s.rfc3339(alert.ActiveAt)
	if !alert.KeepFiringSince.IsZero() {
		s.raw(`,"keepFiringSince":`)
		s.rfc3339(alert.KeepFiringSince)
	}
	s.field(`,"value":`, strconv.FormatFloat(alert.Value, 'e', -1, 64))
	s.raw(`}`)
	s.flushIfFull()
}

// localAlerts returns the active alerts of all alerting rules, in the order of groups and
// rules.
func (a *API) localAlerts(*http.Request) (response, *apiError) {
	groups := a.opts.Rules.RuleGroups()
	return response{write: func(s *stream) {
		s.raw(`{"alerts":[`)
		n := 0
		for _, g := range groups {
			for _, rule := range g.Rules() {
				alerting, ok := rule.(*rules.AlertingRule)
				if !ok {
					continue
				}
				for _, alert := range alerting.ActiveAlerts() {
					s.comma(n)
					s.localAlert(alert)
					n++
				}
			}
		}
		s.raw(`]}`)
	}}, nil
}

// alertmanagers returns the Alertmanagers that discovery has found.
func (a *API) alertmanagers(*http.Request) (response, *apiError) {
	list := func(s *stream, urls []*url.URL) {
		for i, u := range urls {
			s.comma(i)
			s.field(`{"url":`, u.String())
			s.raw(`}`)
		}
	}
	active, dropped := a.opts.Rules.Alertmanagers(), a.opts.Rules.DroppedAlertmanagers()
	return response{write: func(s *stream) {
		s.raw(`{"activeAlertmanagers":[`)
		list(s, active)
		s.raw(`],"droppedAlertmanagers":[`)
		list(s, dropped)
		s.raw(`]}`)
	}}, nil
}
