// Package ingest takes in profiles: pushed ones, uploads of older SDKs, scraped ones and
// profiles of this process.
//
//	push.v1 (profiles/api) -----------------------------+
//	/ingest (form.go: pprof, folded stacks; jfr.go) ----+
//	OTLP (otlpserver.go; otlp.go: to pprof) ------------+--> Ingester --> Store
//	/debug/pprof of targets (scraper.go) ---------------+
//	this process (self.go) -----------------------------+
//
// Every profile goes through Ingester.Push or, from OTLP, pushOTLP: its labels are normalized, and
// it is decoded once within limits and appended to the Store, which returns when the profile is
// durable. A push is accepted or rejected as a whole. An OTLP request may be accepted in part: its
// response has the number of rejected profiles. Rejected profiles are counted by reason. The package
// contains no storage, no wire format except for /ingest, and no state of a tenant except its
// limits.
package ingest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/metrics"
)

// Store stores profiles. Append returns when they are durable; the batch is borrowed until
// then.
type Store interface {
	Append(ctx context.Context, tenant string, batch []profiles.RawProfile) error
}

// Options of an Ingester.
type Options struct {
	Limits     Limits
	DropLabels []string // names of labels of samples that the store drops
}

// Ingester validates profiles and appends them to a Store. Create it with New.
type Ingester struct {
	limits  Limits // of tenants without limits of their own
	store   Store
	logger  *slog.Logger
	now     func() time.Time
	tenants tenants
	decoded sync.Pool // *pprof.Profile
	splits  sync.Pool // *profiles.Splitter

	settings atomic.Pointer[settings]

	received  *metrics.Counter
	bytes     *metrics.CounterVec
	discarded *metrics.CounterVec
	repaired  *metrics.CounterVec
}

// New creates an ingester. It owns no goroutine. set may be nil.
func New(opts Options, store Store, logger *slog.Logger, set *metrics.Set) (*Ingester, error) {
	if err := opts.Limits.Validate(); err != nil {
		return nil, err
	}
	limits := opts.Limits.withDefaults()
	set = cmp.Or(set, metrics.NewSet())
	in := &Ingester{
		limits: limits, store: store, logger: logger, now: time.Now,
		tenants:  tenants{max: limits.Tenants, byName: map[string]*tenant{}},
		received: process.Counter(set, "ferula_profiles_received_total", "Profiles ingested."),
		bytes: set.NewCounterVec("ferula_profiles_received_bytes_total",
			"Bytes of ingested profiles, as sent and decompressed.", "form"),
		discarded: set.NewCounterVec("ferula_profiles_discarded_total", "Profiles rejected, by reason.", "reason"),
		repaired: set.NewCounterVec("ferula_profiles_repaired_total",
			"Parts of ingested profiles that were dropped or repaired, by reason.", "reason"),
	}
	drop := map[string]bool{}
	for _, name := range opts.DropLabels {
		drop[name] = true
	}
	in.splits.New = func() any { return &profiles.Splitter{Drop: drop} }
	in.decoded.New = func() any { return &pprof.Profile{} }
	in.Configure(nil)
	return in, nil
}

// pooledBytesMax is the maximum size of a profile whose buffers are reused.
const pooledBytesMax = 8 << 20

// Push ingests all profiles or, with an error, none.
func (in *Ingester) Push(ctx context.Context, tenant string, pushed []profilepb.RawProfile) error {
	return in.ingest(ctx, tenant, pushed, nil)
}

// ingest is Push if rejected is nil. Otherwise it ingests the valid profiles and adds the errors
// of the others to rejected, by their index in the push.
func (in *Ingester) ingest(ctx context.Context, tenant string, pushed []profilepb.RawProfile,
	rejected map[int]error) error {
	b := &batch{
		limits: in.limitsOf(tenant), rules: in.settings.Load().relabel, rejected: rejected,
		profiles: make([]profiles.RawProfile, 0, len(pushed)), hashes: make(map[uint64]struct{}, len(pushed)),
	}
	defer func() {
		for _, p := range b.profiles {
			in.release(p.Profile)
		}
	}()
	err := b.limits.hinted(in.check(ctx, tenant, pushed, b))
	if err == nil && len(b.profiles) > 0 {
		err = in.store.Append(ctx, tenant, b.profiles)
	}
	if err != nil {
		in.discarded.With(reasonOf(err)).Add(len(pushed))
		return err
	}
	for _, err := range rejected {
		in.discarded.With(reasonOf(err)).Inc()
	}
	if b.dropped > 0 {
		in.discarded.With("relabelled").Add(b.dropped)
	}
	if len(b.profiles) == 0 {
		return nil
	}
	in.tenants.record(tenant, b.tenant, b.hashes, in.now())
	in.received.Add(len(b.profiles))
	for _, p := range b.profiles {
		p.Profile.Repairs.Each(func(reason string, n int) { in.repaired.With(reason).Add(n) })
		in.bytes.With("sent").Add(len(p.Raw))
		in.bytes.With("decompressed").Add(p.Profile.RawBytes())
	}
	return nil
}

// batch holds a push while it is checked and stored.
type batch struct {
	limits   *Limits
	rules    []*relabel.Config
	tenant   *tenant
	profiles []profiles.RawProfile
	hashes   map[uint64]struct{} // of the label sets of all profiles
	rejected map[int]error       // nil: one error rejects the whole push
	dropped  int                 // profiles that the rules drop
}

// release returns the buffers of a decoded profile to the pool; p may be nil.
func (in *Ingester) release(p *pprof.Profile) {
	if p != nil && p.RawBytes() <= pooledBytesMax {
		in.decoded.Put(p)
	}
}

func reasonOf(err error) string {
	var limit *LimitError
	switch {
	case errors.As(err, &limit):
		return limit.Reason
	case errors.Is(err, pprof.ErrLimit):
		return "profile_size"
	case errors.Is(err, pprof.ErrCorrupt), errors.Is(err, profiles.ErrBadRequest), errors.Is(err, errUnsupported):
		return "invalid"
	case errors.Is(err, httpbody.ErrTooLarge):
		return "profile_size"
	case errors.Is(err, httpbody.ErrBusy):
		return "busy"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, httpbody.ErrUnread):
		return "canceled" // the client has disconnected or was too slow
	}
	return "store"
}

// check validates a push and decodes it into b.
func (in *Ingester) check(ctx context.Context, tenantName string, pushed []profilepb.RawProfile, b *batch) (err error) {
	now := in.now()
	if b.tenant, err = in.tenants.get(tenantName, b.limits, now); err != nil {
		return err
	}
	for i := range pushed {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, keep, err := in.decodeOne(&pushed[i], b, now)
		if err != nil || !keep {
			in.release(p.Profile)
		}
		if err != nil {
			if err = b.limits.hinted(err); b.rejected == nil {
				return fmt.Errorf("profile %d: %w", i+1, err)
			}
			b.rejected[i] = err
			continue
		}
		if !keep {
			b.dropped++
			continue
		}
		b.profiles = append(b.profiles, p)
		// Checked after each profile, so that a push of many compression bombs ends early.
		if n := p.Profile.RawBytes(); !b.tenant.rate.AllowN(now, n) {
			return limitError("rate", "profile %d: its %d bytes exceed the tenant's rate of %d bytes a second, and %d at once",
				i+1, n, b.limits.RateBytes, b.limits.BurstBytes)
		}
		in.addSeries(b.hashes, &p)
	}
	return b.tenant.admit(b.hashes, b.limits.Series, now)
}

// addSeries adds the hashes of the label sets that a profile is stored with.
func (in *Ingester) addSeries(hashes map[uint64]struct{}, p *profiles.RawProfile) {
	if !p.Profile.HasLabels() {
		hashes[xxhash.Sum64(p.Labels)] = struct{}{}
		return
	}
	split := in.splits.Get().(*profiles.Splitter)
	defer in.splits.Put(split)
	split.Split(p.Labels, p.Profile)
	p.Profile.Repairs.Labels = split.Overflow
	for _, set := range split.Sets {
		hashes[xxhash.Sum64(set)] = struct{}{}
	}
}

// A start time between microsecondsMin and microsecondsMax is in microseconds, which older
// SDKs for Rust and Python send. In nanoseconds it would be in January 1970.
const (
	microsecondsMin = 946_684_800_000_000   // the year 2000
	microsecondsMax = 4_102_444_800_000_000 // the year 2100
)

// decodeOne validates and decodes one profile. The caller releases p.Profile, also after an
// error. keep is false if the rules of relabelling drop the profile.
func (in *Ingester) decodeOne(pushed *profilepb.RawProfile, b *batch,
	now time.Time) (p profiles.RawProfile, keep bool, err error) {
	if n := len(pushed.Raw); n > b.limits.ProfileBytes {
		return p, false, limitError("profile_size", "%d bytes, at most %d", n, b.limits.ProfileBytes)
	}
	lset, keep, err := normalize(pushed.Labels, b.limits, b.rules)
	if err != nil || !keep {
		return p, false, err
	}
	hasName := false
	for _, l := range lset {
		hasName = hasName || l.Name == profiles.LabelName
		p.Labels = labelenc.AppendLabel(p.Labels, l.Name, l.Value)
	}
	if !hasName {
		return p, false, badRequest("label __name__ is missing")
	}
	if pushed.ID != "" {
		if p.ID, err = profiles.ParseID(pushed.ID); err != nil {
			return p, false, err
		}
	}
	p.Raw, p.Profile = pushed.Raw, in.decoded.Get().(*pprof.Profile)
	if err := p.Profile.Decode(pushed.Raw, b.limits.decode()); err != nil {
		return p, false, err
	}
	if len(p.Profile.SampleTypes) == 0 {
		return p, false, badRequest("it has no sample type")
	}
	if err := checkTypes(p.Profile, b.limits); err != nil {
		return p, false, err
	}
	if t := p.Profile.TimeNS; t >= microsecondsMin && t < microsecondsMax {
		p.Profile.TimeNS = t * 1000
		p.Profile.Repairs.Time++
	}
	if p.TimeNS = cmp.Or(p.Profile.TimeNS, pushed.TimeNS); p.TimeNS == 0 {
		p.TimeNS = now.UnixNano()
	}
	switch at := time.Unix(0, p.TimeNS); {
	case at.Before(now.Add(-b.limits.Age)):
		return p, false, limitError("too_old", "start time %s is more than %s ago", at.UTC().Format(time.RFC3339),
			b.limits.Age)
	case at.After(now.Add(b.limits.Future)):
		return p, false, limitError("too_new", "start time %s is more than %s in the future", at.UTC().Format(time.RFC3339),
			b.limits.Future)
	}
	return p, true, nil
}

// checkTypes returns an error if the name or unit of a sample type or of the period type is too long for a label, or
// has a colon. The ID of a profile type joins these texts with colons, so no query could select a type with a
// further colon.
func checkTypes(p *pprof.Profile, limits *Limits) error {
	check := func(what string, text []byte) error {
		switch {
		case len(text) > limits.LabelValueBytes:
			return limitError("label_value", "%s %.50q... has %d bytes, at most %d", what, text, len(text),
				limits.LabelValueBytes)
		case bytes.IndexByte(text, ':') >= 0:
			return badRequest("%s %.100q has a colon", what, text)
		}
		return nil
	}
	for i, t := range append(p.SampleTypes[:len(p.SampleTypes):len(p.SampleTypes)], p.PeriodType) {
		what := "sample type"
		if i == len(p.SampleTypes) {
			what = "period type"
		}
		if err := cmp.Or(check(what, p.Text(t.Type)), check("unit of "+what, p.Text(t.Unit))); err != nil {
			return err
		}
	}
	return nil
}
