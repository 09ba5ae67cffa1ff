package profiles

import (
	"errors"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
)

// ErrNoExemplar is returned if no exemplar in the range leads to a profile. The error states whether the range has
// exemplars.
var ErrNoExemplar = errors.New("no exemplar in this range")

// ExemplarRequest has a ProfileID, or Selectors and a range. The profile of a ProfileID is searched for in the first of
// these ranges that the request has:
//
//	StartMS to EndMS, if one of them is not 0
//	one hour before to one hour after NearMS, if it is not 0
//	one hour before to one hour after the timestamp in the ID, if it is a UUID of version 7
//	the last day
type ExemplarRequest struct {
	Tenant    string
	ProfileID string
	Selectors [][]*labels.Matcher // of metrics; a series must match one of them
	StartMS   int64               // inclusive; with ProfileID StartMS and EndMS may both be 0
	EndMS     int64               // inclusive
	NearMS    int64               // timestamp; the nearest exemplar is chosen; 0: the exemplar with the greatest value
	// names of labels whose values must be equal in the profiles' samples and in the metric's series
	Match    []string
	WindowMS int64 // if profiles are found by time: how long before the exemplar they may begin; 0: 15 s

	Type     Type // the zero value is process_cpu
	Matchers []*labels.Matcher
	NodesMax int // of the flame graph
}

// ExemplarResult is a flame graph and the exemplar that led to it. The caller owns it.
type ExemplarResult struct {
	Found    bool          // an exemplar was found; false: the request had a profile ID
	Series   labels.Labels // series of the exemplar
	Exemplar exemplar.Exemplar
	By       string // profile_id or time
	ID       string // of the profile; "" if profiles were found by time
	Type     Type
	Flame    *FlameGraph
}
