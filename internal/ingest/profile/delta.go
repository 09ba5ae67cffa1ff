package profile

import (
	"bytes"
	"strings"

	"github.com/google/pprof/profile"
)

// Go counts since the start of the process what was allocated and where
// goroutines waited; what is in use is a state. Of counts the difference between
// two profiles is kept, which is what happened in between.
func isCount(sampleType string) bool { return !strings.HasPrefix(sampleType, "inuse_") }

// difference is what was counted from one profile to the next, with states as
// they are in the later one. Counts that went down (the process has started
// anew) begin at zero. Both profiles are used up.
func difference(from, to *profile.Profile, count func(sampleType string) bool) (*profile.Profile, error) {
	ratios := make([]float64, len(from.SampleType))
	for i, t := range from.SampleType {
		if count(t.Type) {
			ratios[i] = -1
		}
	}
	start, duration := to.TimeNanos, to.DurationNanos
	if err := from.ScaleN(ratios); err != nil {
		return nil, badRequest("%v", err)
	}
	out, err := profile.Merge([]*profile.Profile{to, from})
	if err != nil {
		return nil, badRequest("the previous profile is of another kind: %v", err)
	}
	out.TimeNanos, out.DurationNanos = start, duration
	kept := out.Sample[:0]
	for _, s := range out.Sample {
		some := false
		for i := range s.Value {
			s.Value[i] = max(s.Value[i], 0)
			some = some || s.Value[i] != 0
		}
		if some {
			kept = append(kept, s)
		}
	}
	out.Sample = kept
	return out.Compact(), nil
}

// since is an upload less the profile before it. Both have passed ferula's own
// decoder.
func (in *Ingester) since(u *upload) ([]byte, error) {
	previous, err := profile.ParseData(u.previous)
	if err != nil {
		return nil, badRequest("prev_profile: %v", err)
	}
	current, err := profile.ParseData(u.profile)
	if err != nil {
		return nil, badRequest("profile: %v", err)
	}
	d, err := difference(previous, current, func(sampleType string) bool {
		if u.config == nil {
			return isCount(sampleType)
		}
		return u.config[sampleType].Cumulative
	})
	if err != nil {
		return nil, err
	}
	return encode(d)
}

func encode(p *profile.Profile) ([]byte, error) {
	var b bytes.Buffer
	if err := p.WriteUncompressed(&b); err != nil {
		return nil, badRequest("%v", err)
	}
	return b.Bytes(), nil
}
