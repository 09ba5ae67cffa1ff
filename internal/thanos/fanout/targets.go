package fanout

import (
	"cmp"
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Targets queries all stores that have targets. Of targets that differ only in replica labels it returns the target
// with the worst health, and among targets of the same health the last scraped.
func (q *Query) Targets(ctx context.Context, state string) (storeapi.Targets, annotations.Annotations, error) {
	found, warnings, err := q.targets(ctx, storeapi.TargetsRequest{State: state, AbortOnPartial: q.r.AbortOnPartial})
	if err != nil {
		return storeapi.Targets{}, nil, err
	}
	var all allTargets
	for _, of := range found {
		all.add(of, state)
	}
	all.Active = slices.DeleteFunc(all.Active, func(t storeapi.ActiveTarget) bool { return !q.r.allows(t.Labels) })
	all.Dropped = slices.DeleteFunc(all.Dropped, func(set labels.Labels) bool { return !q.r.allows(set) })
	all.Active, all.Dropped = mergeActive(all.Active, q.r.ReplicaLabels), mergeDropped(all.Dropped, q.r.ReplicaLabels)
	return all.Targets, warnings, nil
}

// allTargets are the targets of several stores.
type allTargets struct{ storeapi.Targets }

// add adds the targets of one store. If state is "active", it adds only active targets; if state is "dropped", only
// dropped targets. The store may have ignored the state in the request.
func (all *allTargets) add(of storeapi.Targets, state string) {
	if state != "dropped" {
		all.Active = append(all.Active, of.Active...)
	}
	if state != "active" {
		all.Dropped = append(all.Dropped, of.Dropped...)
	}
}

func (q *Query) targets(ctx context.Context, r storeapi.TargetsRequest) ([]storeapi.Targets,
	annotations.Annotations, error) {
	return callOffering(ctx, q, func(info *storeapi.Info) bool { return info.Targets }, Client.Targets, r)
}

// callOffering calls all stores whose Info offers an API, and all stores that have not sent Info
// yet. It returns the response of each store.
func callOffering[R, T any](ctx context.Context, q *Query, offers func(*storeapi.Info) bool,
	call func(Client, context.Context, R) (T, []string, error), r R) ([]T, annotations.Annotations, error) {
	c, err := q.f.endpoints.choose(q.r, func(info *storeapi.Info) bool { return info == nil || offers(info) })
	if err != nil {
		return nil, nil, err
	}
	defer c.release()
	found := make([]T, len(c.stores))
	warnings, err := each(ctx, q.f, q.r, c, func(ctx context.Context, i int) ([]string, error) {
		of, warnings, err := call(c.stores[i].client, ctx, r)
		if err == nil {
			found[i] = of
		}
		return warnings, err
	})
	if err != nil {
		return nil, nil, err
	}
	return found, warnings, nil
}

func without(set labels.Labels, names []string) labels.Labels {
	return labels.NewBuilder(set).Del(names...).Labels()
}

// mergeActive removes the replica labels, and then returns each target once, as Targets describes. It sorts the
// targets.
func mergeActive(all []storeapi.ActiveTarget, replicaLabels []string) []storeapi.ActiveTarget {
	for i := range all {
		all[i].Discovered, all[i].Labels = without(all[i].Discovered, replicaLabels), without(all[i].Labels, replicaLabels)
	}
	same := func(a, b storeapi.ActiveTarget) int {
		return cmp.Or(cmp.Compare(a.ScrapePool, b.ScrapePool), cmp.Compare(a.ScrapeURL, b.ScrapeURL),
			labels.Compare(a.Discovered, b.Discovered), labels.Compare(a.Labels, b.Labels))
	}
	slices.SortStableFunc(all, func(a, b storeapi.ActiveTarget) int {
		return cmp.Or(same(a, b), cmp.Compare(healthRank(b.Health), healthRank(a.Health)), b.LastScrape.Compare(a.LastScrape))
	})
	return slices.CompactFunc(all, func(a, b storeapi.ActiveTarget) bool { return same(a, b) == 0 })
}

// healthRank orders health states as Thanos does: down first.
func healthRank(health string) int {
	switch health {
	case "down":
		return 2
	case "up":
		return 1
	}
	return 0
}

func mergeDropped(all []labels.Labels, replicaLabels []string) []labels.Labels {
	for i := range all {
		all[i] = without(all[i], replicaLabels)
	}
	slices.SortFunc(all, labels.Compare)
	return slices.CompactFunc(all, labels.Equal)
}
