package fanout

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// store is one endpoint and its last Info.
type store struct {
	address    string
	strict     bool // queried even while it is down
	client     Client
	configured Address
	metrics    storeInstruments

	mu        sync.Mutex
	last      known
	lastCheck time.Time // time of the last Info
	lastErr   error     // of the last check; nil: it succeeded
	downSince time.Time // zero: up
	users     int       // requests that use client
	removed   bool      // no longer configured: client is closed with the last user
}

// known is what is known of a store.
type known struct {
	info     *storeapi.Info // last Info; nil: never received
	selected selection      // what the Selector selects of info
}

// Status is the state of a store for the stores page.
type Status struct {
	Name         string
	LastCheck    time.Time // time of the last Info
	LastError    error     // nil: healthy
	Component    string    // "" if it never responded
	LabelSets    []labels.Labels
	MinMS, MaxMS int64
	Strict       bool
}

// setInfo records a response to Info and the selected part of it, or the error of the request. changed reports whether
// the store went up or down, or was checked for the first time.
func (s *store) setInfo(info *storeapi.Info, selected selection, err error, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = (err == nil) != (s.lastErr == nil) || s.last.info == nil && s.lastErr == nil
	s.lastErr = err
	if err == nil {
		s.last, s.lastCheck, s.downSince = known{info, selected}, now, time.Time{}
	} else if s.downSince.IsZero() {
		s.downSince = now
	}
	return changed
}

// known returns what is known of the store, and the error of the last check.
func (s *store) known() (known, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.lastErr
}

// use keeps the connection open until release.
func (s *store) use() {
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
}

// release ends a use of the connection. The last release after remove closes the connection.
func (s *store) release() error {
	return s.closeUnless(func() bool { s.users--; return s.users > 0 || !s.removed })
}

// remove closes the connection once it is unused.
func (s *store) remove() error {
	return s.closeUnless(func() bool { s.removed = true; return s.users > 0 })
}

// closeUnless closes the connection unless needed, which it calls with the lock held, returns true.
func (s *store) closeUnless(needed func() bool) error {
	s.mu.Lock()
	stays := needed()
	s.mu.Unlock()
	if stays {
		return nil
	}
	return s.client.Close()
}

func (s *store) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Name: s.address, LastCheck: s.lastCheck, LastError: s.lastErr, Strict: s.strict, MinMS: minTime,
		MaxMS: maxTime}
	if info := s.last.info; info != nil {
		st.Component = info.Component
		for _, set := range info.LabelSets {
			if !set.IsEmpty() {
				st.LabelSets = append(st.LabelSets, set)
			}
		}
		if info.Store != nil {
			st.MinMS, st.MaxMS = info.Store.MinMS, info.Store.MaxMS
		}
	}
	return st
}

// notQueried returns the error for a store that may have data and is not queried.
func notQueried(address string, err error) error {
	if err == nil {
		err = errors.New("no Info received yet")
	}
	return fmt.Errorf("store %s is not queried: %w", address, err)
}

// mayHold reports whether a store may have matching series, by the time range and external
// labels of its Info. Without Info it may have any.
func mayHold(info *storeapi.Info, minMS, maxMS int64, matchers []*labels.Matcher) bool {
	if info == nil {
		return true
	}
	if info.Store == nil || minMS > info.Store.MaxMS || maxMS < info.Store.MinMS {
		return false
	}
	return anyMatches(info.LabelSets, matchers)
}

// anyMatches reports whether one of the label sets may match, or there are no sets.
func anyMatches(sets []labels.Labels, matchers []*labels.Matcher) bool {
	return len(sets) == 0 || slices.ContainsFunc(sets, func(s labels.Labels) bool { return !contradicts(s, matchers) })
}

// contradicts reports whether a matcher does not match the value of a label in set. Matchers on labels that set does
// not have are ignored.
func contradicts(set labels.Labels, matchers []*labels.Matcher) bool {
	return slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
		return set.Has(m.Name) && !m.Matches(set.Get(m.Name))
	})
}

// picked reports whether a request queries the store at an address. choice is Request.Stores.
func picked(choice [][]*labels.Matcher, address string) bool {
	set := labels.FromStrings("__address__", address)
	return len(choice) == 0 || slices.ContainsFunc(choice, func(ms []*labels.Matcher) bool { return !contradicts(set, ms) })
}
