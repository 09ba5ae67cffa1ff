package metas

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/bucket"
)

// coveredSlowly is the definition of covered, block by block.
func coveredSlowly(blocks map[ulid.ULID]*bucket.Meta) (ids []ulid.ULID) {
	var all, kept []*bucket.Meta
	for _, m := range blocks {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *bucket.Meta) int { return cmp.Or(len(b.Sources)-len(a.Sources), a.ID.Compare(b.ID)) })
	for _, m := range all {
		if slices.ContainsFunc(kept, func(other *bucket.Meta) bool {
			return labels.Equal(other.Labels, m.Labels) && other.ResolutionMS == m.ResolutionMS &&
				!slices.ContainsFunc(m.Sources, func(s ulid.ULID) bool { return !slices.Contains(other.Sources, s) })
		}) {
			ids = append(ids, m.ID)
		} else {
			kept = append(kept, m)
		}
	}
	return ids
}

func TestCovered_IsAsDefined(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sources := make([]ulid.ULID, 6)
	for i := range sources {
		sources[i] = ulid.Make()
	}
	some := 0
	for range 2000 {
		blocks := map[ulid.ULID]*bucket.Meta{}
		for range rng.IntN(12) {
			m := &bucket.Meta{ID: ulid.Make(), ResolutionMS: []int64{bucket.Raw, bucket.Raw, bucket.Fine}[rng.IntN(3)], Labels: labels.FromStrings("a", fmt.Sprint(rng.IntN(2)))}
			for range rng.IntN(5) {
				m.Sources = append(m.Sources, sources[rng.IntN(len(sources))]) // a source may be listed twice
			}
			blocks[m.ID] = m
		}
		got, want := covered(blocks), coveredSlowly(blocks)
		slices.SortFunc(got, ulid.ULID.Compare)
		slices.SortFunc(want, ulid.ULID.Compare)
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v of %v", got, want, blocks)
		}
		some += len(got)
	}
	if some < 1000 {
		t.Errorf("only %d blocks were covered", some)
	}
}
