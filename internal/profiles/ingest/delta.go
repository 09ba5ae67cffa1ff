package ingest

import (
	"bytes"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// isCumulative reports whether Go counts a sample type since the start of the process:
// allocations, contentions and delays. For these types the delta between two profiles is
// stored. The inuse types are the current state.
func isCumulative(sampleType string) bool { return !strings.HasPrefix(sampleType, "inuse_") }

// delta returns a profile with the increase of the cumulative values between the profiles from and
// to, and with all other values of to. count reports whether a sample type is cumulative. A value
// that decreased becomes zero, because the process was restarted. delta changes from, but not to.
func delta(from, to *profile.Profile, count func(sampleType string) bool) (*profile.Profile, error) {
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
		return nil, badRequest("the previous profile has another type: %v", err)
	}
	out.TimeNanos, out.DurationNanos = start, duration
	nonZero := out.Sample[:0]
	for _, s := range out.Sample {
		some := false
		for i := range s.Value {
			s.Value[i] = max(s.Value[i], 0)
			some = some || s.Value[i] != 0
		}
		if some {
			nonZero = append(nonZero, s)
		}
	}
	out.Sample = nonZero
	return out.Compact(), nil
}

// cumulative turns profiles of values that Go counts since the start of the process into increases.
type cumulative struct {
	previous *profile.Profile
	since    time.Time // time of previous, or the time from which the first profile counts; zero: it counts nothing
}

// next returns the increase between the previous profile and raw, which was taken at a timestamp. A first profile
// without a time from which it counts may count from months ago: its cumulative values become zero.
func (c *cumulative) next(raw []byte, at time.Time) ([]byte, error) {
	p, err := profile.ParseData(raw)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	previous, since := c.previous, c.since
	c.previous, c.since = p, at
	if since.IsZero() {
		previous, since = p.Copy(), at
	}
	if previous != nil {
		if p, err = delta(previous, p, isCumulative); err != nil {
			return nil, err
		}
	}
	p.TimeNanos, p.DurationNanos = since.UnixNano(), int64(at.Sub(since))
	return encode(p)
}

// uploadDelta returns the delta of an upload to its previous profile. Both were already
// checked by package profiles/pprof.
func (in *Ingester) uploadDelta(u *upload) ([]byte, error) {
	previous, err := profile.ParseData(u.previous)
	if err != nil {
		return nil, badRequest("prev_profile: %v", err)
	}
	current, err := profile.ParseData(u.profile)
	if err != nil {
		return nil, badRequest("profile: %v", err)
	}
	d, err := delta(previous, current, func(sampleType string) bool {
		if u.config == nil {
			return isCumulative(sampleType)
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
