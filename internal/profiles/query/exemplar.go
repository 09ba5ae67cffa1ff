package query

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/profiles"
)

// Reasons of profiles.ErrNoExemplar.
const (
	reasonEmpty = "none of the selected series has an exemplar: the series do not exist, " +
		"their target exposes no exemplars, or no new one was scraped yet"
	reasonNoID = "has a profile ID, and profiles are found by the timestamp of an exemplar only if the request has " +
		"labels to match or a selector of profiles"
)

// exemplarType is the profile type of requests that have none.
var exemplarType = profiles.Type{Name: "process_cpu", SampleType: "cpu", SampleUnit: "nanoseconds", PeriodType: "cpu",
	PeriodUnit: "nanoseconds"}

// mergeFlame is Engine.MergeFlame.
type mergeFlame = func(context.Context, *profiles.MergeRequest) (*profiles.FlameGraph, error)

// ExemplarFinder finds the flame graph of an exemplar's profile, by an exemplar of a metric or of a profile series. For
// metrics it reads the exemplars in the range and chooses the exemplar with the greatest value, or the exemplar
// nearest to a timestamp. The label profile_id of the exemplar names the profile. If no exemplar in the range has it,
// and the request selects profiles by labels, the finder merges the profiles that began shortly before the chosen
// exemplar. Span and trace IDs of samples are not used here.
type ExemplarFinder struct {
	metrics storage.ExemplarQueryable
	merge   mergeFlame
	now     func() time.Time
}

// NewExemplarFinder returns a ExemplarFinder. Without metrics, which may be nil, requests must name profiles.
func NewExemplarFinder(metrics storage.ExemplarQueryable, merge mergeFlame) *ExemplarFinder {
	return &ExemplarFinder{metrics: metrics, merge: merge, now: time.Now}
}

// marginMS is how long before and after an exemplar's timestamp its profile is searched for. The ID identifies the
// profile; the margin only limits how much data the search reads.
const marginMS = 60 * 60 * 1000

// windowMS is the default of profiles.ExemplarRequest.WindowMS: agents commonly push profiles of 15 s.
const windowMS = 15_000

// Find returns the flame graph of a request.
func (f *ExemplarFinder) Find(ctx context.Context, r profiles.ExemplarRequest) (*profiles.ExemplarResult, error) {
	a := &profiles.ExemplarResult{Type: r.Type}
	if a.Type == (profiles.Type{}) {
		a.Type = exemplarType
	}
	merge := profiles.MergeRequest{Tenant: r.Tenant, Type: a.Type, Matchers: r.Matchers, MaxNodes: r.NodesMax}
	if r.ProfileID != "" {
		a.By, a.ID = "profile_id", r.ProfileID
		merge.StartMS, merge.EndMS = f.around(r)
	} else {
		if err := f.find(ctx, r, a); err != nil {
			return nil, err
		}
		for _, name := range r.Match {
			m, err := labels.NewMatcher(labels.MatchEqual, name, a.Series.Get(name))
			if err != nil {
				return nil, fmt.Errorf("%w: %w", profiles.ErrBadRequest, err)
			}
			merge.Matchers = append(merge.Matchers, m)
		}
		merge.StartMS, merge.EndMS = a.Exemplar.Ts-marginMS, a.Exemplar.Ts+marginMS
		if a.By == "time" {
			merge.StartMS, merge.EndMS = a.Exemplar.Ts-cmp.Or(r.WindowMS, windowMS), a.Exemplar.Ts
		}
	}
	if a.By == "profile_id" {
		id, err := profiles.ParseID(a.ID)
		if err != nil {
			return nil, err
		}
		merge.IDs = []profiles.ID{id}
	}
	flame, err := f.merge(ctx, &merge)
	if err != nil {
		return nil, fmt.Errorf("flame graph by %s %s: %w", a.By, a.ID, err)
	}
	a.Flame = flame
	return a, nil
}

// dayMS is how far back a profile is searched for if its ID has no timestamp.
const dayMS = 24 * 60 * 60 * 1000

// around returns the range in which a profile named by ID may have begun.
func (f *ExemplarFinder) around(r profiles.ExemplarRequest) (startMS, endMS int64) {
	if r.StartMS != 0 || r.EndMS != 0 {
		return r.StartMS, r.EndMS
	}
	if r.NearMS != 0 {
		return r.NearMS - marginMS, r.NearMS + marginMS
	}
	if id, err := profiles.ParseID(r.ProfileID); err == nil { // an invalid ID is refused later
		if ms, ok := id.TimeMS(); ok {
			return ms - marginMS, ms + marginMS
		}
	}
	now := f.now().UnixMilli()
	return now - dayMS, now + marginMS
}

// find chooses an exemplar and sets the fields of a that describe it. An exemplar with a profile ID is preferred. An
// exemplar without one is chosen only if the request selects profiles by labels.
func (f *ExemplarFinder) find(ctx context.Context, r profiles.ExemplarRequest, a *profiles.ExemplarResult) error {
	if f.metrics == nil || len(r.Selectors) == 0 {
		return fmt.Errorf("%w: neither a profile nor metrics in the request", profiles.ErrBadRequest)
	}
	q, err := f.metrics.ExemplarQuerier(ctx)
	if err != nil {
		return fmt.Errorf("exemplars: %w", err)
	}
	results, err := q.Select(r.StartMS, r.EndMS, r.Selectors...)
	if err != nil {
		return fmt.Errorf("exemplars: %w", err)
	}
	narrow, empty := len(r.Match) > 0 || len(r.Matchers) > 0, true
	for _, result := range results {
		for _, e := range result.Exemplars {
			empty = false
			by, id := "time", profileOf(e.Labels)
			if id != "" {
				by = "profile_id"
			}
			switch {
			case by == "time" && (!narrow || a.By == "profile_id"):
				continue
			case a.By == by && !better(r.NearMS, &e, &a.Exemplar):
				continue
			}
			a.Found, a.Series, a.Exemplar, a.By, a.ID = true, result.SeriesLabels, e, by, id
		}
	}
	switch {
	case empty:
		return fmt.Errorf("%w: %s", profiles.ErrNoExemplar, reasonEmpty)
	case !a.Found:
		return fmt.Errorf("%w %s", profiles.ErrNoExemplar, reasonNoID)
	}
	return nil
}

// profileOf returns the profile ID of an exemplar, for which programs use three label names. It returns "" if there
// is none.
func profileOf(lset labels.Labels) string {
	return cmp.Or(lset.Get("profile_id"), lset.Get("profileID"), lset.Get("profileId"))
}

// better reports whether exemplar e is preferred to exemplar than. With nearMS the nearer exemplar is preferred,
// without nearMS (0) the exemplar with the greater value. If both are equal in this, the later exemplar is preferred.
func better(nearMS int64, e, than *exemplar.Exemplar) bool {
	if nearMS != 0 {
		a, b := abs(e.Ts-nearMS), abs(than.Ts-nearMS)
		return a < b || (a == b && e.Ts > than.Ts)
	}
	return e.Value > than.Value || (e.Value == than.Value && e.Ts > than.Ts)
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
