package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/dnslookup"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// Time range of a store whose Info has none.
const (
	minTime = math.MinInt64
	maxTime = math.MaxInt64
)

// Address is the configured address of stores: host:port, or a name for dnslookup.
type Address struct {
	Name   string
	Strict bool // --endpoint-strict: queried even while it is down
	Group  bool // --endpoint-group: query one of the name's addresses, not all
	Client ClientConfig
}

// ClientConfig configures the connections of one endpoint. Empty fields take the values that all endpoints share.
// Switches are "true" or "false".
type ClientConfig struct {
	TLS, SkipVerify                       string
	Cert, Key, CA, ServerName, MinVersion string // as in storeclient.Options
	Compression                           string // none or snappy
	ServiceConfig                         string // of gRPC, as JSON
}

// Checked validates the address and normalizes it. The prefix dns+ of a group is removed, because
// gRPC resolves the name. A strict endpoint must be host:port and not a name to look up, because
// its store must always exist.
func (a Address) Checked() (Address, error) {
	if a.Group {
		a.Name = strings.TrimPrefix(a.Name, "dns+")
		prefix, _, found := strings.Cut(a.Name, "+")
		if found && !slices.Contains([]string{"dnsdualstack", "dnssrv", "dnssrvnoa"}, prefix) {
			return a, fmt.Errorf("group %s: unknown prefix %s+", a.Name, prefix)
		}
		return a, nil
	}
	if a.Strict && strings.Contains(a.Name, "+") {
		return a, fmt.Errorf("strict endpoint %s: must be an address and not a name that is looked up", a.Name)
	}
	return a, nil
}

// EndpointsOptions configure the stores. Zero durations are replaced by the defaults below.
type EndpointsOptions struct {
	Static []Address
	// Dynamic returns further addresses and is called every ReloadInterval; may be nil. If
	// it fails the previous addresses stay.
	Dynamic func() ([]Address, error)
	// DynamicChanged reports whether Dynamic may have changed since the last call, so that it
	// is called at once; may be nil.
	DynamicChanged func() bool
	ReloadInterval time.Duration // 0: 5 minutes
	DNSInterval    time.Duration // 0: 30 s
	InfoInterval   time.Duration // 0: 5 s
	InfoTimeout    time.Duration // 0: 5 s
	// UnhealthyTimeout is how long Statuses lists a store that is down and not strict; 0: 5 minutes. Queries name missing
	// endpoints in their warnings:
	//
	//	store that is down                               always
	//	name whose lookup fails                          until a lookup succeeds, if the name has no addresses
	//	name that has never had addresses                for UnhealthyTimeout after the first successful lookup
	//	store whose name has lost the store's address    for UnhealthyTimeout, unless another store has the same
	//	                                                 component and label sets
	UnhealthyTimeout time.Duration

	Selector Selector                        // selects the stores' data by external labels (--selector.relabel-config)
	Dial     func(a Address) (Client, error) // connects to a store; a.Name is host:port, or the name of a group
	Resolver dnslookup.Resolver              // nil: net.DefaultResolver
	Logger   *slog.Logger
	Metrics  *metrics.Set // may be nil
	// ConnectionLabels are the labels that thanos_store_nodes_grpc_connections has: external_labels, store_type or both;
	// nil: both.
	ConnectionLabels []string
	Now              func() time.Time // nil: time.Now
}

func (o EndpointsOptions) withDefaults() EndpointsOptions {
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&o.ReloadInterval, 5 * time.Minute}, {&o.DNSInterval, 30 * time.Second}, {&o.InfoInterval,
		5 * time.Second}, {&o.InfoTimeout, 5 * time.Second}, {&o.UnhealthyTimeout, 5 * time.Minute}} {
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
	if o.ConnectionLabels == nil {
		o.ConnectionLabels = []string{"external_labels", "store_type"}
	}
	return o
}

// endpointsMax is the limit of stores of a querier.
const endpointsMax = 10_000

// Endpoints is the set of stores, updated by Run.
type Endpoints struct {
	opts    EndpointsOptions
	metrics *instruments
	current atomic.Pointer[[]*store] // sorted by address

	mu       sync.Mutex               // guards the fields below: one update at a time
	dynamic  []Address                // last result of Options.Dynamic
	resolved map[string][]string      // by name: addresses of the last lookup
	gone     map[string]absent        // by address: stores whose name no longer resolves to the address
	empty    map[string]absent        // by name: names without addresses
	invalid  []absent                 // endpoints whose connections cannot be configured
	absent   atomic.Pointer[[]absent] // what queries report as missing; from invalid, empty and gone
	reloadAt time.Time                // next call of Dynamic
	lookupAt time.Time                // next resolution of all names
}

// NewEndpoints returns an empty set.
func NewEndpoints(opts EndpointsOptions) *Endpoints {
	e := &Endpoints{opts: opts.withDefaults(), metrics: newInstruments(opts.Metrics), resolved: map[string][]string{},
		gone: map[string]absent{}, empty: map[string]absent{}}
	e.absent.Store(&[]absent{})
	e.current.Store(&[]*store{})
	if opts.Metrics != nil {
		opts.Metrics.RegisterMetricsWriter(e.writeMetrics)
	}
	return e
}

// Run updates the set until ctx is done, then closes all connections that no query uses.
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

// Close closes all connections. It must not be called while Run or a request runs.
func (e *Endpoints) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replace(nil)
}

// Update requests Info of each store. Before, it calls Dynamic if ReloadInterval has passed or Dynamic may have
// changed, and resolves the names if it has called Dynamic or DNSInterval has passed.
func (e *Endpoints) Update(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.opts.Now()
	lookup := false
	changed := e.opts.DynamicChanged != nil && e.opts.DynamicChanged()
	if e.opts.Dynamic != nil && (changed || !now.Before(e.reloadAt)) {
		e.reloadAt, lookup = now.Add(e.opts.ReloadInterval), true
		if found, err := e.opts.Dynamic(); err != nil {
			e.opts.Logger.Error("Reloading endpoints failed", "err", err)
		} else {
			e.dynamic = found
		}
	}
	if lookup || !now.Before(e.lookupAt) {
		e.lookupAt = now.Add(e.opts.DNSInterval)
		e.replace(e.lookup(ctx))
	}
	var wg sync.WaitGroup
	for _, s := range *e.current.Load() {
		wg.Go(func() { e.poll(ctx, s) })
	}
	wg.Wait()
	e.updateAbsent(now)
}

// absent is an endpoint that queries report as missing and for which there is no store in Endpoints.current.
type absent struct {
	known
	address string // or the name without addresses
	name    string // of a store that is gone: the name that no longer resolves to its address
	err     error
	since   time.Time
	fails   bool // the lookup fails: reported as missing without a time limit
}

// updateAbsent sets e.absent. It forgets stores and names that have been missing for longer than UnhealthyTimeout.
func (e *Endpoints) updateAbsent(now time.Time) {
	all := slices.Clone(e.invalid)
	for name, a := range e.empty {
		if a.fails || now.Sub(a.since) <= e.opts.UnhealthyTimeout {
			all = append(all, a)
		} else {
			e.opts.Logger.Warn("Endpoint has no addresses; no longer reported as missing", "endpoint", name)
			delete(e.empty, name)
		}
	}
	for address, g := range e.gone {
		if now.Sub(g.since) > e.opts.UnhealthyTimeout || e.replaced(g.info) {
			delete(e.gone, address)
			continue
		}
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b absent) int { return strings.Compare(a.address, b.address) })
	e.absent.Store(&all)
}

// replaced reports whether a healthy store has the same component and label sets as old. This store is the old store
// at a new address, or a replica of it.
func (e *Endpoints) replaced(old *storeapi.Info) bool {
	for _, s := range *e.current.Load() {
		if k, err := s.known(); err == nil && k.info != nil && k.info.Component == old.Component &&
			slices.EqualFunc(k.info.LabelSets, old.LabelSets, labels.Equal) {
			return true
		}
	}
	return false
}

// forget records that a lookup of a name has found the addresses found, or failed with the error failed. It adds the
// stores at addresses that the name had and no longer has to e.gone. If found is empty, it adds the name to e.empty.
func (e *Endpoints) forget(name string, found []string, failed error) {
	old, known := e.resolved[name]
	earlier, wasEmpty := e.empty[name]
	switch {
	case len(found) > 0:
		delete(e.empty, name)
	case failed != nil:
		e.empty[name] = absent{address: name, err: failed, fails: true}
	case !known || wasEmpty && earlier.fails: // the first lookup of the name that has not failed
		e.empty[name] = absent{address: name, err: errNoAddresses, since: e.opts.Now()}
	}
	for _, s := range *e.current.Load() {
		if slices.Contains(old, s.address) && !slices.Contains(found, s.address) {
			if k, _ := s.known(); k.info != nil { // without Info no data are known to be missing
				err := fmt.Errorf("%s no longer resolves to its address", name)
				e.gone[s.address] = absent{known: k, address: s.address, name: name, err: err, since: e.opts.Now()}
			}
		}
	}
	e.resolved[name] = found
}

var errNoAddresses = errors.New("name has no addresses")

// poll requests Info of a store and records the response or the error. It logs if the store has gone up or down.
func (e *Endpoints) poll(ctx context.Context, s *store) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.InfoTimeout)
	defer cancel()
	info, err := s.client.Info(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return // the querier stops
	}
	var selected selection
	if err == nil {
		selected, err = e.opts.Selector.selection(&info)
	}
	if !s.setInfo(&info, selected, err, e.opts.Now()) {
		return
	}
	if err != nil {
		e.opts.Logger.Warn("Store is down", "store", s.address, "err", err)
	} else {
		e.opts.Logger.Info("Store is up", "store", s.address, "type", info.Component, "labels", fmt.Sprint(info.LabelSets))
	}
}

// lookup resolves all names concurrently. A name whose lookup fails retains its addresses.
func (e *Endpoints) lookup(ctx context.Context) []Address {
	names := slices.Concat(e.opts.Static, e.dynamic)
	found, failed := make([][]string, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, a := range names {
		if !a.Group { // gRPC resolves the addresses of a group
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, e.opts.InfoTimeout)
				defer cancel()
				found[i], failed[i] = dnslookup.Lookup(ctx, e.opts.Resolver, a.Name)
				if strings.Contains(a.Name, "+") {
					e.metrics.lookups.Inc()
				}
				if failed[i] != nil {
					e.metrics.lookupsFailed.Inc()
				}
			})
		}
	}
	wg.Wait()
	var all []Address
	used := map[string]bool{}
	for i, a := range names {
		if a.Group {
			all = append(all, a)
			continue
		}
		used[a.Name] = true
		if failed[i] != nil {
			e.opts.Logger.Error("Endpoint lookup failed", "endpoint", a.Name, "err", failed[i])
			found[i] = e.resolved[a.Name]
		}
		e.forget(a.Name, found[i], failed[i])
		for _, address := range found[i] {
			all = append(all, Address{Name: address, Strict: a.Strict, Client: a.Client})
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
		if a.Strict { // of duplicates the strict one wins
			return -1
		}
		return 1
	})
	all = slices.CompactFunc(all, func(a, b Address) bool { return a.Name == b.Name })
	if len(all) > endpointsMax {
		e.opts.Logger.Error("Too many endpoints; skipping the last ones", "found", len(all), "limit", endpointsMax)
		all = all[:endpointsMax]
	}
	return all
}

// replace replaces the addresses. Stores whose configuration is unchanged keep their connections.
func (e *Endpoints) replace(addresses []Address) {
	old := map[string]*store{}
	for _, s := range *e.current.Load() {
		old[s.address] = s
	}
	e.invalid = nil
	next := make([]*store, 0, len(addresses))
	for _, a := range addresses {
		if s := old[a.Name]; s != nil && s.configured == a {
			next = append(next, s)
			delete(old, a.Name)
			continue
		}
		client, err := e.opts.Dial(a)
		if err != nil {
			e.opts.Logger.Error("Endpoint is invalid", "endpoint", a.Name, "err", err)
			e.invalid = append(e.invalid, absent{address: a.Name, err: err})
			continue
		}
		next = append(next, &store{address: a.Name, strict: a.Strict, configured: a, client: client,
			metrics: e.metrics.of(a.Name)})
	}
	e.current.Store(&next)
	kept := map[string]bool{}
	for _, s := range next {
		kept[s.address] = true
	}
	for _, s := range old {
		if !kept[s.address] {
			e.metrics.remove(s.address)
		}
		if err := s.remove(); err != nil {
			e.opts.Logger.Warn("Closing a connection failed", "store", s.address, "err", err)
		}
	}
}

// Statuses lists the stores by address, with the label sets that the selector selects. It omits stores that are not
// strict and have been down for longer than UnhealthyTimeout, and stores whose label sets are all dropped by the
// selector.
func (e *Endpoints) Statuses() []Status {
	now := e.opts.Now()
	var all []Status
	for _, s := range *e.current.Load() {
		s.mu.Lock()
		hidden := !s.strict && !s.downSince.IsZero() && now.Sub(s.downSince) > e.opts.UnhealthyTimeout
		s.mu.Unlock()
		k, _ := s.known()
		if hidden || k.selected.none {
			continue
		}
		st := s.status()
		if k.selected.info != nil {
			st.LabelSets = slices.DeleteFunc(slices.Clone(k.selected.info.LabelSets), labels.Labels.IsEmpty)
		}
		all = append(all, st)
	}
	return all
}

// chosen are the stores that a request queries. The request calls release at its end. Until then the connections of the
// stores stay open.
type chosen struct {
	stores   []*store
	infos    []*storeapi.Info    // by store: the last Info when the store was chosen; nil: never received
	matchers [][]*labels.Matcher // by store: they select the series that the Selector selects; nil: all
	missing  []error             // one for each store that may have data and is not queried
}

func (c *chosen) release() {
	for _, s := range c.stores {
		_ = s.release() // a query cannot use the error of closing a connection
	}
	c.stores = nil
}

// choose selects the stores for which wanted returns true. The argument of wanted is nil for a
// store that has never sent Info.
func (e *Endpoints) choose(r Request, wanted func(*storeapi.Info) bool) (*chosen, error) {
	return e.chooseOf(r, func(k known) selection { return selection{info: k.info} }, wanted)
}

// chooseData is choose for series, labels and exemplars, which the Selector restricts. wanted gets Infos with the
// selected label sets only. A store whose label sets are all dropped by the Selector is not chosen.
func (e *Endpoints) chooseData(r Request, wanted func(*storeapi.Info) bool) (*chosen, error) {
	return e.chooseOf(r, func(k known) selection { return k.selected }, wanted)
}

// chooseOf implements choose and chooseData. of returns the part of a store that may be queried.
func (e *Endpoints) chooseOf(r Request, of func(known) selection, wanted func(*storeapi.Info) bool) (*chosen, error) {
	all := *e.current.Load()
	absent := *e.absent.Load()
	if len(all)+len(absent) == 0 && r.AbortOnPartial {
		return nil, ErrNoStores
	}
	c := &chosen{}
	for i := range absent {
		a := &absent[i]
		if part := of(a.known); picked(r.Stores, a.address) && !part.none && wanted(part.info) {
			c.missing = append(c.missing, notQueried(a.address, a.err))
		}
	}
	for _, s := range all {
		k, err := s.known()
		part := of(k)
		if !picked(r.Stores, s.address) || part.none || !wanted(part.info) {
			continue
		}
		if (err != nil || part.info == nil) && !s.strict {
			c.missing = append(c.missing, notQueried(s.address, err))
			continue
		}
		s.use()
		c.stores, c.infos, c.matchers = append(c.stores, s), append(c.infos, part.info), append(c.matchers, part.matchers)
	}
	if r.AbortOnPartial && len(c.missing) > 0 {
		c.release()
		return nil, fmt.Errorf("%w: %w", storeapi.ErrUnavailable, errors.Join(c.missing...))
	}
	return c, nil
}
