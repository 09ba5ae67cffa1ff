package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// What is said of a store that has not said its range.
const (
	minTime = math.MinInt64
	maxTime = math.MaxInt64
)

// Address names stores: host:port, or what resolve makes of it.
type Address struct {
	Name   string
	Strict bool // asked even while it seems to be down
	Group  bool // one of the addresses behind the name is asked, not all
}

// Checked is the address as it is used, or what is wrong with it: of a group gRPC looks
// the name up, so its prefix goes; a strict store is always there, so it has an address.
func (a Address) Checked() (Address, error) {
	if a.Group {
		a.Name = strings.TrimPrefix(a.Name, "dns+")
		if strings.Contains(a.Name, "+") {
			return a, fmt.Errorf("group %s: only host:port and dns+host:port are supported", a.Name)
		}
		return a, nil
	}
	if a.Strict && strings.Contains(a.Name, "+") {
		return a, fmt.Errorf("strict endpoint %s: must be an address and not a name that is looked up", a.Name)
	}
	return a, nil
}

// EndpointsOptions say where stores are. Zero durations take the defaults named.
type EndpointsOptions struct {
	Static []Address
	// Dynamic is asked for further addresses every ReloadInterval; may be nil. When it
	// fails those of before are kept.
	Dynamic        func() ([]Address, error)
	ReloadInterval time.Duration // 0: 5 minutes
	DNSInterval    time.Duration // 0: 30 s
	InfoInterval   time.Duration // 0: 5 s
	InfoTimeout    time.Duration // 0: 5 s
	// HideAfter is how long a store that is down is still listed; it is asked for its
	// state, and missed by queries, as long as it is configured. As long queries miss a
	// store whose address its name does not give any more, unless one that has said the
	// same of itself is there, and a name that has given no address yet. 0: 5 minutes.
	UnhealthyTimeout time.Duration

	Dial     func(address string, group bool) (Client, error)
	Resolver Resolver // nil: net.DefaultResolver
	Logger   *slog.Logger
	Metrics  *metrics.Set     // may be nil
	Now      func() time.Time // nil: time.Now
}

func (o EndpointsOptions) withDefaults() EndpointsOptions {
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&o.ReloadInterval, 5 * time.Minute}, {&o.DNSInterval, 30 * time.Second}, {&o.InfoInterval, 5 * time.Second}, {&o.InfoTimeout, 5 * time.Second}, {&o.UnhealthyTimeout, 5 * time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// endpointsMax bounds how many stores a querier has.
const endpointsMax = 10_000

// Endpoints is the set of stores, kept up to date by Run.
type Endpoints struct {
	opts    EndpointsOptions
	current atomic.Pointer[[]*store] // by address

	mu       sync.Mutex // of what follows: one update at a time
	dynamic  []Address
	resolved map[string][]string // of each name, as it was last found
	gone     map[string]gone     // addresses that their names do not give any more
	empty    map[string]absent   // names that have given no address yet
	absent   atomic.Pointer[[]absent]
	reloadAt time.Time
	lookupAt time.Time
}

// NewEndpoints makes an empty set.
func NewEndpoints(opts EndpointsOptions) *Endpoints {
	e := &Endpoints{opts: opts.withDefaults(), resolved: map[string][]string{}, gone: map[string]gone{}, empty: map[string]absent{}}
	e.absent.Store(&[]absent{})
	e.current.Store(&[]*store{})
	if opts.Metrics != nil {
		opts.Metrics.RegisterMetricsWriter(e.writeMetrics)
	}
	return e
}

// Run keeps the set up to date until ctx ends, then closes all connections that no
// query uses.
func (e *Endpoints) Run(ctx context.Context) {
	tick := time.NewTicker(e.opts.InfoInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			e.replace(nil)
			return
		case <-tick.C:
			e.Update(ctx)
		}
	}
}

// Update finds the stores, if it is time to, and asks each for its state.
func (e *Endpoints) Update(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.opts.Now()
	lookup := false
	if e.opts.Dynamic != nil && !now.Before(e.reloadAt) {
		e.reloadAt, lookup = now.Add(e.opts.ReloadInterval), true
		if found, err := e.opts.Dynamic(); err != nil {
			e.opts.Logger.Error("endpoints could not be read again", "err", err)
		} else {
			e.dynamic = found
		}
	}
	if lookup || !now.Before(e.lookupAt) {
		e.lookupAt = now.Add(e.opts.DNSInterval)
		e.replace(e.lookup(ctx))
	}
	var asking sync.WaitGroup
	for _, s := range *e.current.Load() {
		asking.Go(func() { e.ask(ctx, s) })
	}
	asking.Wait()
	e.miss(now)
}

// absent is what queries miss though there is no store for it.
type absent struct {
	address string         // or the name that gives none
	info    *storeapi.Info // as it was said last; nil: never
	err     error
	since   time.Time
	fails   bool // it cannot be looked up, which does not become old
}

// gone is a store that was there.
type gone struct {
	info  *storeapi.Info
	name  string
	since time.Time
}

// miss tells queries what is absent.
func (e *Endpoints) miss(now time.Time) {
	var all []absent
	for name, a := range e.empty {
		if a.fails || now.Sub(a.since) <= e.opts.UnhealthyTimeout {
			all = append(all, a)
		} else {
			e.opts.Logger.Warn("endpoint has no addresses; it is not missed any more", "endpoint", name)
			delete(e.empty, name)
		}
	}
	for address, g := range e.gone {
		if now.Sub(g.since) > e.opts.UnhealthyTimeout || e.replaced(g.info) {
			delete(e.gone, address)
			continue
		}
		all = append(all, absent{address: address, info: g.info, err: fmt.Errorf("%s does not give its address any more", g.name)})
	}
	slices.SortFunc(all, func(a, b absent) int { return strings.Compare(a.address, b.address) })
	e.absent.Store(&all)
}

// replaced says whether there is a store that says of itself what another one said, as
// one has it that has come back with another address, or a further replica of it.
func (e *Endpoints) replaced(old *storeapi.Info) bool {
	for _, s := range *e.current.Load() {
		if info, err := s.known(); err == nil && info != nil && info.Component == old.Component && slices.EqualFunc(info.LabelSets, old.LabelSets, labels.Equal) {
			return true
		}
	}
	return false
}

// forget remembers what a name gives, and what it gave and does not give any more.
func (e *Endpoints) forget(name string, found []string, failed error) {
	old, known := e.resolved[name]
	a, was := e.empty[name]
	switch {
	case len(found) > 0:
		delete(e.empty, name)
	case failed != nil:
		e.empty[name] = absent{address: name, err: failed, fails: true}
	case !known || was && a.fails:
		e.empty[name] = absent{address: name, err: errNoAddresses, since: e.opts.Now()}
	}
	for _, s := range *e.current.Load() {
		if slices.Contains(old, s.address) && !slices.Contains(found, s.address) {
			if info, _ := s.known(); info != nil { // of one that never said anything there is nothing to be missed
				e.gone[s.address] = gone{info: info, name: name, since: e.opts.Now()}
			}
		}
	}
	e.resolved[name] = found
}

var errNoAddresses = errors.New("there are no addresses of this name")

func (e *Endpoints) ask(ctx context.Context, s *store) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.InfoTimeout)
	defer cancel()
	info, err := s.client.Info(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return // the querier stops
	}
	if !s.said(info, err, e.opts.Now()) {
		return
	}
	if err != nil {
		e.opts.Logger.Warn("store is down", "store", s.address, "err", err)
	} else {
		e.opts.Logger.Info("store is up", "store", s.address, "component", info.Component, "labels", fmt.Sprint(info.LabelSets))
	}
}

// lookup resolves all names, together. A name that cannot be looked up keeps its
// addresses.
func (e *Endpoints) lookup(ctx context.Context) []Address {
	names := slices.Concat(e.opts.Static, e.dynamic)
	found, failed := make([][]string, len(names)), make([]error, len(names))
	var asking sync.WaitGroup
	for i, a := range names {
		if !a.Group { // of a group gRPC's own resolver finds the addresses
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, e.opts.InfoTimeout)
				defer cancel()
				found[i], failed[i] = resolve(ctx, e.opts.Resolver, a.Name)
			})
		}
	}
	asking.Wait()
	var all []Address
	used := map[string]bool{}
	for i, a := range names {
		if a.Group {
			all = append(all, a)
			continue
		}
		used[a.Name] = true
		if failed[i] != nil {
			e.opts.Logger.Error("endpoint could not be looked up", "err", failed[i])
			found[i] = e.resolved[a.Name]
		}
		e.forget(a.Name, found[i], failed[i])
		for _, address := range found[i] {
			all = append(all, Address{Name: address, Strict: a.Strict})
		}
	}
	for name := range e.resolved {
		if !used[name] {
			delete(e.resolved, name)
			delete(e.empty, name)
		}
	}
	for address, g := range e.gone {
		if !used[g.name] || slices.ContainsFunc(all, func(a Address) bool { return a.Name == address }) {
			delete(e.gone, address)
		}
	}
	slices.SortStableFunc(all, func(a, b Address) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 || a.Strict == b.Strict {
			return c
		}
		if a.Strict { // of two that are the same store the strict one stays
			return -1
		}
		return 1
	})
	all = slices.CompactFunc(all, func(a, b Address) bool { return a.Name == b.Name })
	if len(all) > endpointsMax {
		e.opts.Logger.Error("too many endpoints: the last are left out", "found", len(all), "limit", endpointsMax)
		all = all[:endpointsMax]
	}
	return all
}

// replace takes the addresses over; stores that are there already stay.
func (e *Endpoints) replace(addresses []Address) {
	old := map[string]*store{}
	for _, s := range *e.current.Load() {
		old[s.address] = s
	}
	next := make([]*store, 0, len(addresses))
	for _, a := range addresses {
		if s := old[a.Name]; s != nil && s.strict == a.Strict {
			next = append(next, s)
			delete(old, a.Name)
			continue
		}
		client, err := e.opts.Dial(a.Name, a.Group)
		if err != nil {
			e.opts.Logger.Error("endpoint cannot be used", "endpoint", a.Name, "err", err)
			continue
		}
		next = append(next, &store{address: a.Name, strict: a.Strict, client: client})
	}
	e.current.Store(&next)
	for _, s := range old {
		if err := s.remove(); err != nil {
			e.opts.Logger.Warn("connection did not close well", "store", s.address, "err", err)
		}
	}
}

// Statuses lists the stores for people, by address. Those that have been down for
// long are left out.
func (e *Endpoints) Statuses() []Status {
	now := e.opts.Now()
	var all []Status
	for _, s := range *e.current.Load() {
		s.mu.Lock()
		hidden := !s.strict && !s.downSince.IsZero() && now.Sub(s.downSince) > e.opts.UnhealthyTimeout
		s.mu.Unlock()
		if !hidden {
			all = append(all, s.status())
		}
	}
	return all
}

// chosen are the stores a request asks, each to be released, and why others are not
// asked that may hold something.
type chosen struct {
	stores  []*store
	infos   []*storeapi.Info // as known when they were chosen; nil: never said
	missing []error
}

func (c *chosen) release() {
	for _, s := range c.stores {
		_ = s.release() // what closing a connection says is of no use to a query
	}
	c.stores = nil
}

// choose picks the stores for which wanted holds. wanted is given nil for stores that
// have never said what they hold.
func (e *Endpoints) choose(r Request, wanted func(*storeapi.Info) bool) (*chosen, error) {
	all := *e.current.Load()
	absent := *e.absent.Load()
	if len(all)+len(absent) == 0 && r.AbortOnPartial {
		return nil, ErrNoStores
	}
	c := &chosen{}
	for _, a := range absent {
		if picked(r.Stores, a.address) && wanted(a.info) {
			c.missing = append(c.missing, fmt.Errorf("store %s is not asked: %w", a.address, a.err))
		}
	}
	for _, s := range all {
		info, err := s.known()
		if !picked(r.Stores, s.address) || !wanted(info) {
			continue
		}
		if (err != nil || info == nil) && !s.strict {
			c.missing = append(c.missing, s.notAsked(err))
			continue
		}
		s.use()
		c.stores, c.infos = append(c.stores, s), append(c.infos, info)
	}
	if r.AbortOnPartial && len(c.missing) > 0 {
		c.release()
		return nil, fmt.Errorf("%w: %w", storeapi.ErrUnavailable, errors.Join(c.missing...))
	}
	return c, nil
}

// writeMetrics counts stores by what they are, as they are at a scrape.
func (e *Endpoints) writeMetrics(w io.Writer) {
	labelText := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	counts := map[string]int{} // by labels
	for _, s := range *e.current.Load() {
		st := s.status()
		component := labelText.Replace(strings.ToValidUTF8(st.Component, "\ufffd")) // a store may say anything
		counts[fmt.Sprintf(`component="%s",up="%t"`, component, st.LastError == nil)]++
	}
	if len(counts) == 0 {
		return
	}
	const name = "ferula_query_stores"
	page := fmt.Appendf(nil, "# HELP %s Stores by component and whether they answer.\n# TYPE %s gauge\n", name, name)
	for _, set := range slices.Sorted(maps.Keys(counts)) {
		page = fmt.Appendf(page, "%s{%s} %d\n", name, set, counts[set])
	}
	_, _ = w.Write(page) // whoever scrapes sees that it failed
}
