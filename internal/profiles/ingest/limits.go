package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// Limits are the limits of one tenant. Zero values take the defaults.
type Limits struct {
	RateBytes  int // decompressed bytes per second; 0: 32 MiB
	BurstBytes int // burst of decompressed bytes, never less than DecompressedBytes; 0: twice the rate
	// label sets stored within the last hour; labels of samples make further label sets; 0: 20,000
	Series            int
	ProfileBytes      int           // size of one profile as sent; 0: 16 MiB
	DecompressedBytes int           // decompressed size of one profile; 0: 4 MiB
	Symbols           int           // strings of one profile; 0: 500,000
	Samples           int           // samples of one profile; 0: 16,000
	Depth             int           // frames of one stack; a deeper stack loses frames at the leaf; 0: 1,000
	Nodes             int           // nodes of the call tree of one profile; 0: 500,000
	Labels            int           // labels of one series; 0: 30
	LabelNameBytes    int           // 0: 1,024
	LabelValueBytes   int           // 0: 2,048
	Age               time.Duration // maximum age of a profile's start time; 0: 1 h
	Future            time.Duration // how far a start time may be in the future; 0: 10 min
	Tenants           int           // number of tenants; 0: 1,000

	Flags hint.Flags // the flags that raise the limits, named in errors
}

func (l Limits) withDefaults() Limits {
	l.RateBytes = cmp.Or(l.RateBytes, 32<<20)
	l.DecompressedBytes = cmp.Or(l.DecompressedBytes, 4<<20)
	l.BurstBytes = max(cmp.Or(l.BurstBytes, 2*l.RateBytes), l.DecompressedBytes)
	l.Series = cmp.Or(l.Series, 20_000)
	l.ProfileBytes = cmp.Or(l.ProfileBytes, 16<<20)
	l.Symbols = cmp.Or(l.Symbols, 500_000)
	l.Samples = cmp.Or(l.Samples, 16_000)
	l.Depth = cmp.Or(l.Depth, 1000)
	l.Nodes = cmp.Or(l.Nodes, 500_000)
	l.Labels = cmp.Or(l.Labels, 30)
	l.LabelNameBytes = cmp.Or(l.LabelNameBytes, 1024)
	l.LabelValueBytes = cmp.Or(l.LabelValueBytes, 2048)
	l.Tenants = cmp.Or(l.Tenants, 1000)
	l.Age = cmp.Or(l.Age, time.Hour)
	l.Future = cmp.Or(l.Future, 10*time.Minute)
	return l
}

// Validate returns all errors joined.
func (l Limits) Validate() error {
	var errs []error
	for name, v := range map[string]int{
		"rate": l.RateBytes, "burst": l.BurstBytes, "series": l.Series, "profile bytes": l.ProfileBytes,
		"decompressed bytes": l.DecompressedBytes,
		"symbols":            l.Symbols, "samples": l.Samples, "depth": l.Depth, "nodes": l.Nodes, "labels": l.Labels,
		"label name bytes": l.LabelNameBytes, "label value bytes": l.LabelValueBytes,
		"age": int(l.Age), "future": int(l.Future), "tenants": l.Tenants,
	} {
		if v < 0 || v > math.MaxInt64/4 {
			errs = append(errs, fmt.Errorf("profile limit on %s: %d is not between 0 and %d", name, v, math.MaxInt64/4))
		}
	}
	return errors.Join(errs...)
}

func (l *Limits) decode() pprof.Limits {
	return pprof.Limits{Flags: l.Flags, Bytes: l.DecompressedBytes, Strings: l.Symbols, Functions: l.Symbols,
		Locations: l.Symbols, Samples: l.Samples, Depth: l.Depth, Nodes: l.Nodes}
}

// optionOf maps the reason of a rejection to the option that sets the limit.
var optionOf = map[string]string{
	"rate": "RateBytes", "series": "Series", "tenants": "Tenants", "profile_size": "ProfileBytes", "too_old": "Age",
	"too_new":    "Future",
	"label_name": "LabelNameBytes", "label_value": "LabelValueBytes", "labels": "Labels",
}

// hinted adds the flag that raises the limit to a LimitError.
func (l *Limits) hinted(err error) error {
	var e *LimitError
	if flag := ""; errors.As(err, &e) {
		if flag = l.Flags.Of(optionOf[e.Reason]); flag != "" && !strings.HasSuffix(e.text, flag) {
			e.text += flag
		}
	}
	return err
}

// LimitError is the error of a push that exceeds a limit.
type LimitError struct {
	Reason string // label of ferula_profiles_discarded_total
	text   string
}

// Error implements error.
func (e *LimitError) Error() string { return e.text }

// Is makes the error profiles.ErrLimit if the same push may succeed later, otherwise profiles.ErrBadRequest.
func (e *LimitError) Is(target error) bool {
	if e.Reason == "rate" || e.Reason == "series" || e.Reason == "tenants" {
		return target == profiles.ErrLimit
	}
	return target == profiles.ErrBadRequest
}

func limitError(reason, format string, args ...any) error {
	return &LimitError{Reason: reason, text: fmt.Sprintf(format, args...)}
}

// seriesIdle is how long a series counts towards the limit after its last push.
const seriesIdle = time.Hour

// tenants holds the rate limiter and the active series of every tenant.
type tenants struct {
	max    int
	mu     sync.Mutex
	byName map[string]*tenant
	swept  time.Time // when idle tenants were removed
}

type tenant struct {
	rate   *rate.Limiter
	mu     sync.Mutex
	series map[uint64]time.Time // time of the last push, by hash of the labels
	swept  time.Time            // when idle series were removed
	last   time.Time            // time of the last stored push
}

// get returns a tenant. A new one is recorded only after a successful push, so that
// rejected pushes do not count towards the limit of tenants.
func (t *tenants) get(name string, limits *Limits, now time.Time) (*tenant, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.byName[name]; known != nil {
		known.limit(limits, now)
		return known, nil
	}
	if err := t.evictIdle(now); err != nil {
		return nil, err
	}
	return &tenant{rate: rate.NewLimiter(rate.Limit(limits.RateBytes), limits.BurstBytes),
		series: map[uint64]time.Time{}}, nil
}

// limit sets the rate of a tenant, which a reload may have changed.
func (t *tenant) limit(limits *Limits, now time.Time) {
	if perSecond := rate.Limit(limits.RateBytes); t.rate.Limit() != perSecond {
		t.rate.SetLimitAt(now, perSecond)
	}
	if t.rate.Burst() != limits.BurstBytes {
		t.rate.SetBurstAt(now, limits.BurstBytes)
	}
}

// evictIdle removes idle tenants if the limit of tenants is reached.
func (t *tenants) evictIdle(now time.Time) error {
	if len(t.byName) < t.max {
		return nil
	}
	if now.Sub(t.swept) > time.Minute {
		t.swept = now
		maps.DeleteFunc(t.byName, func(_ string, known *tenant) bool { return known.idle(now) })
	}
	if len(t.byName) >= t.max {
		return limitError("tenants", "the limit of %d tenants is reached", len(t.byName))
	}
	return nil
}

// record records a tenant and the series of a stored push.
func (t *tenants) record(name string, pushed *tenant, hashes map[uint64]struct{}, now time.Time) {
	t.mu.Lock()
	if known := t.byName[name]; known != nil {
		pushed = known // recorded by a concurrent first push
	} else {
		t.byName[name] = pushed
	}
	t.mu.Unlock()
	pushed.mu.Lock()
	defer pushed.mu.Unlock()
	pushed.last = now
	for hash := range hashes {
		pushed.series[hash] = now
	}
}

func (t *tenant) idle(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Sub(t.last) > seriesIdle
}

// admit returns an error if the new series of a push exceed the limit. It does not add them: record
// does that after the push is stored.
func (t *tenant) admit(hashes map[uint64]struct{}, seriesMax int, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh := 0
	for hash := range hashes {
		if _, known := t.series[hash]; !known {
			fresh++
		}
	}
	if fresh > 0 && len(t.series)+fresh > seriesMax && now.Sub(t.swept) > time.Minute {
		t.swept = now
		maps.DeleteFunc(t.series, func(_ uint64, last time.Time) bool { return now.Sub(last) > seriesIdle })
	}
	if fresh > 0 && len(t.series)+fresh > seriesMax {
		return limitError("series", "%d new label sets of profiles and their samples in addition to %d "+
			"exceed the limit of %d",
			fresh, len(t.series), seriesMax)
	}
	return nil
}
