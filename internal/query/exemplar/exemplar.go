// Package exemplar is where the two lanes meet: from a sample that stands for a
// metric, or a profile that stands for a series of profiles, to the flame graph of
// what was done then.
//
// A Request comes in. If it names a profile, that one is asked for. If it names
// metrics, their exemplars in the range are read, and the one with the greatest
// value is taken, or the one nearest to a time. Its label profile_id says which
// profile to look at. Exemplars of programs that know no profiles have a time all the
// same: if none names a profile, and the request says by labels whose profiles are
// meant, those that began shortly before the exemplar are put together.
//
// Labels that the metric's series and the profiles' samples share may narrow it,
// so that one can have the CPU of one endpoint. There is no storage, no PromQL but
// the selectors it is given, and no HTTP here. Span and trace ids of samples are
// not kept by the store, so that none leads through them.
package exemplar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series/profiles"
)

// ErrNone is returned where no exemplar in the range leads to a profile.
var ErrNone = errors.New("no exemplar in this range names a profile, and without labels to match or a selector its time names none either")

// Merger makes flame graphs. query/profile's engine is one.
type Merger interface {
	MergeFlame(ctx context.Context, r *profiles.MergeRequest) (*profiles.FlameGraph, error)
}

// DefaultType is looked at where a request does not say.
var DefaultType = profiles.Type{Name: "process_cpu", SampleType: "cpu", SampleUnit: "nanoseconds", PeriodType: "cpu", PeriodUnit: "nanoseconds"}

// Request names what is looked for: ProfileID, or Selectors and a range. A profile is
// looked for in the range, near to NearMS, at the time that its id begins with, or in
// the last day: the first of these that is known.
type Request struct {
	Tenant    string
	ProfileID string
	Selectors [][]*labels.Matcher // of metrics; any of them
	StartMS   int64               // inclusive; with ProfileID both may be 0
	EndMS     int64
	NearMS    int64    // 0: the greatest value, else the exemplar nearest to it
	Match     []string // labels whose values the samples must have in common with the metric's series
	WindowMS  int64    // how long before an exemplar a profile of its time may begin; 0: 15 s

	Type     profiles.Type // the zero value is DefaultType
	Matchers []*labels.Matcher
	NodesMax int
}

// Answer is a flame graph and what led to it. It is the caller's.
type Result struct {
	Found    bool          // whether an exemplar led here, and not a profile's id
	Series   labels.Labels // that the exemplar stands for
	Exemplar exemplar.Exemplar
	By       string // profile_id or time
	ID       string // of the profile; "" by time
	Type     profiles.Type
	Flame    *profiles.FlameGraph
}

// Finder finds. Use New.
type Finder struct {
	metrics  storage.ExemplarQueryable
	profiles Merger
	now      func() time.Time
}

// New makes a finder; metrics may be nil, then only profiles can be named.
func New(metrics storage.ExemplarQueryable, merger Merger) *Finder {
	return &Finder{metrics: metrics, profiles: merger, now: time.Now}
}

// marginMS is how long before an exemplar's time its profile may have begun, and how
// long after it. A profile is found by its id; this keeps the search short.
const marginMS = 60 * 60 * 1000

// windowMS is as long as most profile.
const windowMS = 15_000

// Find leads to a flame graph.
func (f *Finder) Find(ctx context.Context, r Request) (*Result, error) {
	a := &Result{Type: r.Type}
	if a.Type == (profiles.Type{}) {
		a.Type = DefaultType
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
	flame, err := f.profiles.MergeFlame(ctx, &merge)
	if err != nil {
		return nil, fmt.Errorf("flame graph by %s %s: %w", a.By, a.ID, err)
	}
	a.Flame = flame
	return a, nil
}

// dayMS is how far back a profile is looked for of which only an id is known that
// says no time.
const dayMS = 24 * 60 * 60 * 1000

// around is when a profile that is named by its id may have begun.
func (f *Finder) around(r Request) (startMS, endMS int64) {
	if r.StartMS != 0 || r.EndMS != 0 {
		return r.StartMS, r.EndMS
	}
	if r.NearMS != 0 {
		return r.NearMS - marginMS, r.NearMS + marginMS
	}
	if id, err := profiles.ParseID(r.ProfileID); err == nil { // else it is refused later
		if ms, ok := id.TimeMS(); ok {
			return ms - marginMS, ms + marginMS
		}
	}
	now := f.now().UnixMilli()
	return now - dayMS, now + marginMS
}

// find chooses the exemplar.
func (f *Finder) find(ctx context.Context, r Request, a *Result) error {
	if f.metrics == nil || len(r.Selectors) == 0 {
		return fmt.Errorf("%w: neither a profile nor metrics are named", profiles.ErrBadRequest)
	}
	q, err := f.metrics.ExemplarQuerier(ctx)
	if err != nil {
		return fmt.Errorf("exemplars: %w", err)
	}
	results, err := q.Select(r.StartMS, r.EndMS, r.Selectors...)
	if err != nil {
		return fmt.Errorf("exemplars: %w", err)
	}
	narrow := len(r.Match) > 0 || len(r.Matchers) > 0
	for _, result := range results {
		for _, e := range result.Exemplars {
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
	if !a.Found {
		return ErrNone
	}
	return nil
}

// profileOf is the profile that an exemplar names, as any program spells it.
func profileOf(lset labels.Labels) string {
	return cmp.Or(lset.Get("profile_id"), lset.Get("profileID"), lset.Get("profileId"))
}

// better compares by the distance to a time or by value; of equals the later one
// wins.
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
