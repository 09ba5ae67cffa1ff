package metas

import (
	"math"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/ferula-io/ferula/internal/bucket"
)

// Rules decide which of the blocks of a bucket a store serves.
type Rules struct {
	MinMS, MaxMS       func() int64 // --min-time and --max-time: blocks outside this range are not served; nil: no limit
	Relabel            []*relabel.Config
	ConsistencyDelay   time.Duration // minimum age at which a block is served; blocks of a compactor are served at once
	IgnoreDeletedDelay time.Duration // blocks are served for this time after their deletion mark
}

// blockIDLabel is the label by which a relabel configuration sees a block's ULID.
const blockIDLabel = "__block_id"

// Range returns the limits of the times that are served, in ms.
func (r Rules) Range() (minMS, maxMS int64) {
	minMS, maxMS = math.MinInt64, math.MaxInt64
	if r.MinMS != nil {
		minMS = r.MinMS()
	}
	if r.MaxMS != nil {
		maxMS = r.MaxMS()
	}
	return minMS, maxMS
}

// apply removes the blocks that are not served, in Thanos' order of filters.
func (r Rules) apply(result *Result, deleted map[ulid.ULID]time.Time, now time.Time) {
	minMS, maxMS := r.Range()
	drop := func(id ulid.ULID, state string) {
		delete(result.Blocks, id)
		result.States[state]++
	}
	for id, m := range result.Blocks {
		at, mark := deleted[id]
		switch {
		case m.MaxMS < minMS || m.MinMS > maxMS:
			drop(id, timeExclude)
		case !r.keeps(m):
			drop(id, labelExcl)
		case r.fresh(m, now):
			drop(id, tooFresh)
		case mark && now.Sub(at) > r.IgnoreDeletedDelay:
			drop(id, marked)
		}
	}
	for _, id := range covered(result.Blocks) {
		drop(id, duplicate)
	}
}

func (r Rules) keeps(m *bucket.Meta) bool {
	if len(r.Relabel) == 0 {
		return true
	}
	b := labels.NewBuilder(m.Labels)
	b.Set(blockIDLabel, m.ID.String())
	return relabel.ProcessBuilder(b, r.Relabel...)
}

// fresh reports whether the upload of a block may still be running. Blocks of a compactor are
// always complete.
func (r Rules) fresh(m *bucket.Meta, now time.Time) bool {
	switch m.Source {
	case "compactor", "compactor.repair", "bucket.repair":
		return false
	}
	at := m.Uploaded
	if at.IsZero() {
		at = time.UnixMilli(int64(m.ID.Time()))
	}
	return now.Sub(at) < r.ConsistencyDelay
}

// covered returns the blocks that another block covers: a block with the same external labels, the
// same resolution, and at least the same sources. It has the same samples, because a compactor has
// made it from these sources. If two blocks have the same sources, the older one covers the other. A
// block without sources is covered by any block with sources; of several blocks without sources the
// oldest stays.
func covered(blocks map[ulid.ULID]*bucket.Meta) (ids []ulid.ULID) {
	type key struct {
		labels     uint64
		resolution int64
	}
	groups := map[key][]*bucket.Meta{}
	for _, m := range blocks {
		k := key{m.Labels.Hash(), m.ResolutionMS}
		groups[k] = append(groups[k], m)
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b *bucket.Meta) int {
			if len(a.Sources) != len(b.Sources) {
				return len(b.Sources) - len(a.Sources)
			}
			return a.ID.Compare(b.ID)
		})
		// A block that covers m has the first source of m. So only the blocks with this source are compared with m. If m
		// has no other source, each of these blocks covers m.
		bySource := make(map[ulid.ULID][]*bucket.Meta, len(group))
		sets := map[*bucket.Meta]map[ulid.ULID]bool{} // filled by setOf
		for i, m := range group {
			if len(m.Sources) == 0 {
				if i > 0 {
					ids = append(ids, m.ID)
				}
				continue
			}
			parents := bySource[m.Sources[0]]
			if len(m.Sources) == 1 && len(parents) > 0 || slices.ContainsFunc(parents, func(parent *bucket.Meta) bool {
				return hasAll(setOf(sets, parent), m.Sources)
			}) {
				ids = append(ids, m.ID)
				continue
			}
			for _, s := range m.Sources {
				bySource[s] = append(bySource[s], m)
			}
		}
	}
	return ids
}

// setOf returns the sources of a block as a set. It computes each set once and keeps it in sets.
func setOf(sets map[*bucket.Meta]map[ulid.ULID]bool, m *bucket.Meta) map[ulid.ULID]bool {
	set := sets[m]
	if set == nil {
		set = make(map[ulid.ULID]bool, len(m.Sources))
		for _, s := range m.Sources {
			set[s] = true
		}
		sets[m] = set
	}
	return set
}

func hasAll(set map[ulid.ULID]bool, all []ulid.ULID) bool {
	return !slices.ContainsFunc(all, func(id ulid.ULID) bool { return !set[id] })
}
