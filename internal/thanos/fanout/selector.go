package fanout

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Selector restricts the series, labels and exemplars of a querier by the external labels of the stores. It does not
// restrict rules, targets, metadata and TSDB statistics. The zero value selects all.
type Selector struct {
	// Relabel drops label sets, by rules with the actions keep, drop and hashmod. A store is not queried if all its label
	// sets are dropped. If only some are dropped, the series of the store are selected by the values of the other label
	// sets.
	Relabel []*relabel.Config
	// Labels describe the data that this querier serves. Info reports them, and matchers that contradict them select
	// nothing. The series do not have these labels.
	Labels labels.Labels
}

// selection is the part of a store that a Selector selects. The zero value is for a store that has
// never sent Info and may have any data.
type selection struct {
	info     *storeapi.Info    // with the selected label sets only
	matchers []*labels.Matcher // of the series of these label sets; nil: all series
	none     bool              // all label sets are dropped
}

// store returns the StoreAPI's part of the Info; nil: nothing of it is selected.
func (s selection) store() *storeapi.StoreInfo {
	if s.info == nil {
		return nil
	}
	return s.info.Store
}

// selection applies the relabel configuration to the label sets of a store. A store without
// label sets is selected.
func (s Selector) selection(info *storeapi.Info) (selection, error) {
	if info == nil || len(s.Relabel) == 0 || len(info.LabelSets) == 0 {
		return selection{info: info}, nil
	}
	kept := slices.DeleteFunc(slices.Clone(info.LabelSets), func(set labels.Labels) bool { return !s.keeps(set) })
	switch len(kept) {
	case 0:
		return selection{none: true}, nil
	case len(info.LabelSets):
		return selection{info: info}, nil
	}
	part := *info
	part.LabelSets = kept
	if info.Store != nil {
		store := *info.Store
		store.TSDBs = slices.DeleteFunc(slices.Clone(store.TSDBs), func(db storeapi.TSDBInfo) bool {
			return !s.keeps(db.Labels)
		})
		part.Store = &store
	}
	matchers, err := matchersOf(kept)
	return selection{info: &part, matchers: matchers}, err
}

func (s Selector) keeps(set labels.Labels) bool {
	return relabel.ProcessBuilder(labels.NewBuilder(set), s.Relabel...)
}

// matchersOf returns a matcher for each label name of the kept sets. It matches all values of the label in these
// sets and, if a set lacks the label, the empty value. As in Thanos the labels are matched one by one, so a dropped
// set may match, too: the matchers of the kept sets {a="1", b="1"} and {a="2", b="2"} also match {a="1", b="2"}.
func matchersOf(sets []labels.Labels) ([]*labels.Matcher, error) {
	values := map[string][]string{}
	for _, set := range sets {
		set.Range(func(l labels.Label) { values[l.Name] = append(values[l.Name], l.Value) })
	}
	matchers := make([]*labels.Matcher, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all := values[name]
		if len(all) < len(sets) {
			all = append(all, "")
		}
		slices.Sort(all)
		all = slices.Compact(all)
		kind, value := labels.MatchEqual, all[0]
		if len(all) > 1 {
			for i := range all {
				all[i] = regexp.QuoteMeta(all[i])
			}
			kind, value = labels.MatchRegexp, strings.Join(all, "|")
		}
		m, err := labels.NewMatcher(kind, name, value)
		if err != nil {
			return nil, fmt.Errorf("selecting by %d values of label %s: %w", len(all), name, err)
		}
		matchers = append(matchers, m)
	}
	return matchers, nil
}

// restrict removes the matchers on labels that s.Labels has. ok is false if such a matcher does not match the
// value in s.Labels: then no series is selected.
func (s Selector) restrict(matchers []*labels.Matcher) (rest []*labels.Matcher, ok bool) {
	if s.Labels.IsEmpty() {
		return matchers, true
	}
	return series.MatchExternal(s.Labels, matchers)
}

// announced adds the selector's labels to the label sets of Info, where they replace labels of the same names. Without
// label sets it returns the selector's labels as the only set.
func (s Selector) announced(sets []labels.Labels) []labels.Labels {
	if s.Labels.IsEmpty() {
		return sets
	}
	if len(sets) == 0 {
		return []labels.Labels{s.Labels}
	}
	for i, set := range sets {
		sets[i] = storeapi.WithExternal(set, s.Labels)
	}
	return sets
}

// both returns the matchers of a request and of a store. The slice is newly allocated if there are
// matchers of the store.
func both(request, store []*labels.Matcher) []*labels.Matcher {
	if len(store) == 0 {
		return request
	}
	return slices.Concat(request, store)
}
