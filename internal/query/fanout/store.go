package fanout

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// store is one endpoint and what is known of it.
type store struct {
	address string
	strict  bool // asked even while it seems to be down
	client  Client

	mu        sync.Mutex
	info      *storeapi.Info // as it was said last; nil: never
	lastCheck time.Time      // of the last success
	lastErr   error
	downSince time.Time
	users     int
	removed   bool
}

// Status is what is known of a store, for people.
type Status struct {
	Name             string
	LastCheck        time.Time // when it answered last
	LastError        error     // nil: healthy
	Component        string    // "" if it never answered
	LabelSets        []labels.Labels
	MinMS, MaxMS     int64
	HasStore, Strict bool
}

// said takes the answer to Info, or the error instead.
func (s *store) said(info storeapi.Info, err error, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = (err == nil) != (s.lastErr == nil) || s.info == nil && s.lastErr == nil
	s.lastErr = err
	if err == nil {
		s.info, s.lastCheck, s.downSince = &info, now, time.Time{}
	} else if s.downSince.IsZero() {
		s.downSince = now
	}
	return changed
}

// known is what the store said last, nil if never, and what keeps it from answering.
func (s *store) known() (*storeapi.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info, s.lastErr
}

// use keeps the connection open until release.
func (s *store) use() {
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
}

func (s *store) release() error {
	s.mu.Lock()
	s.users--
	last := s.removed && s.users == 0
	s.mu.Unlock()
	if last {
		return s.client.Close()
	}
	return nil
}

// remove closes the connection once nobody uses it.
func (s *store) remove() error {
	s.mu.Lock()
	s.removed = true
	last := s.users == 0
	s.mu.Unlock()
	if last {
		return s.client.Close()
	}
	return nil
}

func (s *store) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Name: s.address, LastCheck: s.lastCheck, LastError: s.lastErr, Strict: s.strict, MinMS: minTime, MaxMS: maxTime}
	if s.info != nil {
		st.Component = s.info.Component
		for _, set := range s.info.LabelSets {
			if !set.IsEmpty() {
				st.LabelSets = append(st.LabelSets, set)
			}
		}
		if s.info.Store != nil {
			st.MinMS, st.MaxMS, st.HasStore = s.info.Store.MinMS, s.info.Store.MaxMS, true
		}
	}
	return st
}

// notAsked is the reason why a query leaves out a store that may hold data.
func (s *store) notAsked(err error) error {
	if err == nil {
		err = errors.New("it has not said yet what it holds")
	}
	return fmt.Errorf("store %s is not asked: %w", s.address, err)
}

// mayHold says whether a store may hold series that match, by what it said of its
// time range and external labels. Of one that said nothing everything may be.
func mayHold(info *storeapi.Info, minMS, maxMS int64, matchers []*labels.Matcher) bool {
	if info == nil {
		return true
	}
	if info.Store == nil || minMS > info.Store.MaxMS || maxMS < info.Store.MinMS {
		return false
	}
	return anyMatches(info.LabelSets, matchers)
}

// anyMatches says whether one of the label sets contradicts no matcher. No sets at
// all contradict nothing.
func anyMatches(sets []labels.Labels, matchers []*labels.Matcher) bool {
	for _, set := range sets {
		if !contradicts(set, matchers) {
			return true
		}
	}
	return len(sets) == 0
}

func contradicts(set labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if set.Has(m.Name) && !m.Matches(set.Get(m.Name)) {
			return true
		}
	}
	return false
}

// picked says whether a request's choice of stores includes an address.
func picked(choice [][]*labels.Matcher, address string) bool {
	for _, matchers := range choice {
		if !contradicts(labels.FromStrings("__address__", address), matchers) {
			return true
		}
	}
	return len(choice) == 0
}
