package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// storeTargets returns the targets of all stores in Prometheus' format. Like Thanos it
// omits fields that StoreAPI does not have: scrape interval, timeout and the counts of
// dropped targets.
func (a *API) storeTargets(r *http.Request) (response, *apiError) {
	state := strings.ToLower(r.FormValue("state"))
	switch state {
	case "":
		state = "any"
	case "any", "active", "dropped":
	default:
		return response{}, invalidParameter("state", fmt.Errorf("%q is not one of any, active, dropped", state))
	}
	p, apiErr := a.storeParams(r, purpose{dedup: true})
	if apiErr != nil {
		return response{}, apiErr
	}
	found, warnings, err := a.opts.Stores.Query(p).Targets(r.Context(), state)
	if err != nil {
		return response{}, queryError(err)
	}
	return response{write: func(s *stream) {
		s.raw(`{"activeTargets":[`)
		for i, t := range found.Active {
			s.comma(i)
			s.raw(`{"discoveredLabels":`)
			s.labels(t.Discovered)
			s.raw(`,"labels":`)
			s.labels(t.Labels)
			s.field(`,"scrapePool":`, t.ScrapePool)
			s.field(`,"scrapeUrl":`, t.ScrapeURL)
			s.field(`,"globalUrl":`, t.GlobalURL)
			s.field(`,"lastError":`, t.LastError)
			s.raw(`,"lastScrape":`)
			s.rfc3339(t.LastScrape)
			s.raw(`,"lastScrapeDuration":`)
			s.number(t.LastScrapeSeconds)
			s.field(`,"health":`, t.Health)
			s.raw("}")
			s.flushIfFull()
		}
		s.raw(`],"droppedTargets":[`)
		for i, set := range found.Dropped {
			s.comma(i)
			s.raw(`{"discoveredLabels":`)
			s.labels(set)
			s.raw("}")
			s.flushIfFull()
		}
		s.raw(`]}`)
	}, annotations: &responseAnnotations{list: warnings}}, nil
}

// storeRules returns the rules of all stores in Prometheus' format. It omits the time at
// which an alert last fired, which StoreAPI does not have.
func (a *API) storeRules(r *http.Request) (response, *apiError) {
	kind := strings.ToLower(r.FormValue("type"))
	switch kind {
	case "":
		kind = "all"
	case "alert", "record":
	default:
		return response{}, invalidParameter("type", fmt.Errorf("not supported value %q", kind))
	}
	p, apiErr := a.storeParams(r, purpose{dedup: true})
	if apiErr != nil {
		return response{}, apiErr
	}
	matchers, err := a.opts.Parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		return response{}, invalidParameter("match[]", err)
	}
	groups, warnings, err := a.opts.Stores.Query(p).Rules(r.Context(), kind, matchers)
	if err != nil {
		return response{}, queryError(err)
	}
	groups = filterGroups(groups, r.Form["rule_name[]"], r.Form["rule_group[]"], r.Form["file[]"])
	return response{write: func(s *stream) {
		s.raw(`{"groups":[`)
		for i := range groups {
			s.comma(i)
			s.ruleGroup(&groups[i])
		}
		s.raw(`]}`)
	}, annotations: &responseAnnotations{list: warnings}}, nil
}

// filterGroups filters groups in place by rule name, group name and file. An empty list
// matches everything. With any filter, groups without rules are removed.
func filterGroups(groups []storeapi.RuleGroup, names, groupNames, files []string) []storeapi.RuleGroup {
	if len(names)+len(groupNames)+len(files) == 0 {
		return groups
	}
	matches := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	left := groups[:0]
	for _, g := range groups {
		g.Rules = slices.DeleteFunc(g.Rules, func(r storeapi.Rule) bool { return !matches(names, r.Name) })
		if len(g.Rules) > 0 && matches(groupNames, g.Name) && matches(files, g.File) {
			left = append(left, g)
		}
	}
	return left
}

func (s *stream) ruleGroup(g *storeapi.RuleGroup) {
	s.field(`{"name":`, g.Name)
	s.field(`,"file":`, g.File)
	s.raw(`,"rules":[`)
	for i := range g.Rules {
		s.comma(i)
		if g.Rules[i].Alerting {
			s.alertingRule(&g.Rules[i])
		} else {
			s.recordingRule(&g.Rules[i])
		}
		s.flushIfFull()
	}
	s.raw(`],"interval":`)
	s.number(g.IntervalSeconds)
	s.raw(`,"limit":`)
	s.integer(g.Limit)
	s.raw(`,"evaluationTime":`)
	s.number(g.EvaluationSeconds)
	s.raw(`,"lastEvaluation":`)
	s.rfc3339(g.LastEvaluation)
	s.raw("}")
}

func (s *stream) recordingRule(r *storeapi.Rule) {
	s.field(`{"name":`, r.Name)
	s.field(`,"query":`, r.Query)
	if !r.Labels.IsEmpty() {
		s.raw(`,"labels":`)
		s.labels(r.Labels)
	}
	s.ruleEvaluation(r)
	s.raw(`,"type":"recording"}`)
}

func (s *stream) alertingRule(r *storeapi.Rule) {
	s.field(`{"state":`, r.State)
	s.field(`,"name":`, r.Name)
	s.field(`,"query":`, r.Query)
	s.raw(`,"duration":`)
	s.number(r.DurationSeconds)
	s.raw(`,"keepFiringFor":`)
	s.number(r.KeepFiringSeconds)
	s.raw(`,"labels":`)
	s.labels(r.Labels)
	s.raw(`,"annotations":`)
	s.labels(r.Annotations)
	s.raw(`,"alerts":[`)
	for i := range r.Alerts {
		s.comma(i)
		s.alert(&r.Alerts[i])
	}
	s.raw("]")
	s.ruleEvaluation(r)
	s.raw(`,"type":"alerting"}`)
}

// ruleEvaluation appends health, error, duration and time of a rule's last evaluation.
func (s *stream) ruleEvaluation(r *storeapi.Rule) {
	s.field(`,"health":`, r.Health)
	if r.LastError != "" {
		s.field(`,"lastError":`, r.LastError)
	}
	s.raw(`,"evaluationTime":`)
	s.number(r.EvaluationSeconds)
	s.raw(`,"lastEvaluation":`)
	s.rfc3339(r.LastEvaluation)
}

func (s *stream) alert(a *storeapi.Alert) {
	s.raw(`{"labels":`)
	s.labels(a.Labels)
	s.raw(`,"annotations":`)
	s.labels(a.Annotations)
	s.field(`,"state":`, a.State)
	if !a.ActiveAt.IsZero() {
		s.raw(`,"activeAt":`)
		s.rfc3339(a.ActiveAt)
	}
	s.field(`,"value":`, a.Value)
	s.raw("}")
	s.flushIfFull()
}

// storeAlerts returns the active alerts of all alerting rules.
func (a *API) storeAlerts(r *http.Request) (response, *apiError) {
	p, apiErr := a.storeParams(r, purpose{dedup: true})
	if apiErr != nil {
		return response{}, apiErr
	}
	groups, warnings, err := a.opts.Stores.Query(p).Rules(r.Context(), "alert", nil)
	if err != nil {
		return response{}, queryError(err)
	}
	return response{write: func(s *stream) {
		s.raw(`{"alerts":[`)
		n := 0
		for _, g := range groups {
			for _, rule := range g.Rules {
				for i := range rule.Alerts {
					s.comma(n)
					s.alert(&rule.Alerts[i])
					n++
				}
			}
		}
		s.raw(`]}`)
	}, annotations: &responseAnnotations{list: warnings}}, nil
}
