package fanout

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Rules queries all stores that have rules. kind is alert, record or all. Groups with equal file and name are
// merged. Of rules that differ only in replica labels it returns the rule whose alert is nearest to firing, and
// among rules of the same state the last evaluated. As in Thanos, all sets of matchers must match the labels of a
// rule, and a label whose value is a template counts as absent.
func (q *Query) Rules(ctx context.Context, kind string,
	matchers [][]*labels.Matcher) ([]storeapi.RuleGroup, annotations.Annotations, error) {
	found, warnings, err := q.rules(ctx, storeapi.RulesRequest{Type: kind, AbortOnPartial: q.r.AbortOnPartial})
	if err != nil {
		return nil, nil, err
	}
	groups := slices.Concat(found...)
	if len(q.r.Matchers) > 0 {
		groups = selectRules(groups, func(r *storeapi.Rule) bool { return q.r.allows(r.Labels) })
	}
	if len(matchers) > 0 {
		groups = selectRules(groups, func(r *storeapi.Rule) bool {
			return labels.Selector(slices.Concat(matchers...)).Matches(withoutTemplates(r.Labels))
		})
	}
	return mergeGroups(groups, q.r.ReplicaLabels), warnings, nil
}

// selectRules drops the rules that are not wanted, and groups without remaining rules.
func selectRules(groups []storeapi.RuleGroup, wanted func(*storeapi.Rule) bool) []storeapi.RuleGroup {
	left := groups[:0]
	for _, g := range groups {
		if g.Rules = slices.DeleteFunc(g.Rules, func(r storeapi.Rule) bool { return !wanted(&r) }); len(g.Rules) > 0 {
			left = append(left, g)
		}
	}
	return left
}

// withoutTemplates returns the labels whose values are known before an alert is evaluated.
func withoutTemplates(set labels.Labels) labels.Labels {
	b := labels.NewBuilder(set)
	set.Range(func(l labels.Label) {
		if strings.Contains(l.Value, "{{") {
			b.Del(l.Name)
		}
	})
	return b.Labels()
}

func (q *Query) rules(ctx context.Context, r storeapi.RulesRequest) ([][]storeapi.RuleGroup,
	annotations.Annotations, error) {
	return callOffering(ctx, q, func(info *storeapi.Info) bool { return info.Rules }, Client.Rules, r)
}

// mergeGroups merges groups with the same file and name, and the rules of each group. It sorts the groups by file
// and name.
func mergeGroups(all []storeapi.RuleGroup, replicaLabels []string) []storeapi.RuleGroup {
	same := func(a, b storeapi.RuleGroup) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Name, b.Name))
	}
	slices.SortStableFunc(all, same)
	united := all[:0]
	for _, g := range all {
		if n := len(united); n > 0 && same(united[n-1], g) == 0 {
			united[n-1].Rules = append(united[n-1].Rules, g.Rules...)
		} else {
			united = append(united, g)
		}
	}
	for i := range united {
		united[i].Rules = mergeRules(united[i].Rules, replicaLabels)
	}
	return united
}

// mergeRules merges rules that differ only in replica labels. It retains the order of first
// occurrence, which is the order of evaluation; Thanos sorts the rules.
func mergeRules(rules []storeapi.Rule, replicaLabels []string) []storeapi.Rule {
	order := make([]int, len(rules))
	for i := range rules {
		rules[i].Labels = without(rules[i].Labels, replicaLabels)
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return compareRules(&rules[i], &rules[j]) })
	double := make([]bool, len(rules))
	for at := 0; at < len(order); {
		first := order[at]
		for at++; at < len(order) && compareRules(&rules[first], &rules[order[at]]) == 0; at++ {
			double[order[at]] = true
			if preferred(&rules[order[at]], &rules[first]) {
				rules[first] = rules[order[at]]
			}
		}
	}
	united := make([]storeapi.Rule, 0, len(rules))
	for i := range rules {
		if !double[i] {
			united = append(united, rules[i])
		}
	}
	return united
}

// compareRules returns 0 if a and b are the same rule of two replicas.
func compareRules(a, b *storeapi.Rule) int {
	if a.Alerting != b.Alerting {
		if a.Alerting {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Name, b.Name), labels.Compare(a.Labels, b.Labels), cmp.Compare(a.Query, b.Query),
		cmp.Compare(a.DurationSeconds, b.DurationSeconds))
}

// preferred reports whether a is returned instead of the equal rule b.
func preferred(a, b *storeapi.Rule) bool {
	if x, y := urgency(a.State), urgency(b.State); x != y {
		return x > y
	}
	return a.LastEvaluation.After(b.LastEvaluation)
}

func urgency(state string) int {
	return slices.Index([]string{"inactive", "pending", "firing"}, state)
}
