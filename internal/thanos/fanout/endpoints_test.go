package fanout

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// zone is a resolver with fixed results.
type zone struct {
	hosts map[string][]string
	srv   map[string][]*net.SRV
	err   error
}

func (z *zone) LookupIPAddr(_ context.Context, host string) ([]net.IPAddr, error) {
	var all []net.IPAddr
	for _, ip := range z.hosts[host] {
		all = append(all, net.IPAddr{IP: net.ParseIP(ip)})
	}
	if all == nil && z.err == nil {
		return nil, &net.DNSError{IsNotFound: true}
	}
	return all, z.err
}

func (z *zone) LookupSRV(_ context.Context, _, _, name string) (string, []*net.SRV, error) {
	if z.srv[name] == nil && z.err == nil {
		return "", nil, &net.DNSError{IsNotFound: true}
	}
	return "", z.srv[name], z.err
}

func TestEndpoints_HideStoresThatAreDown(t *testing.T) {
	now := time.Unix(1000, 0)
	dialled := map[string]*fakeStore{}
	z := &zone{hosts: map[string][]string{"stores": {"10.0.0.1", "10.0.0.2"}}}
	set := metrics.NewSet()
	e := NewEndpoints(EndpointsOptions{
		Static:   []Address{{Name: "dns+stores:1"}, {Name: "fixed:1", Strict: true}},
		Resolver: z, Now: func() time.Time { return now }, DNSInterval: 30 * time.Second, UnhealthyTimeout: time.Minute, Metrics: set,
		Dial: func(a Address) (Client, error) {
			address := a.Name
			dialled[address] = &fakeStore{}
			return dialled[address], nil
		},
	})
	names := func() []string {
		e.Update(context.Background())
		var all []string
		for _, s := range e.Statuses() {
			name := s.Name
			if s.LastError != nil {
				name += " down"
			}
			all = append(all, name)
		}
		return all
	}
	check := func(what string, want ...string) {
		t.Helper()
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("at first", "10.0.0.1:1", "10.0.0.2:1", "fixed:1")
	z.hosts["stores"] = []string{"10.0.0.2", "10.0.0.3"}
	check("before the next lookup", "10.0.0.1:1", "10.0.0.2:1", "fixed:1")
	now = now.Add(31 * time.Second)
	check("after it", "10.0.0.2:1", "10.0.0.3:1", "fixed:1")
	if !dialled["10.0.0.1:1"].closed {
		t.Error("the connection of a store that has gone is open")
	}
	z.err = errors.New("no response")
	now = now.Add(31 * time.Second)
	check("the name server is down", "10.0.0.2:1", "10.0.0.3:1", "fixed:1")
	dialled["10.0.0.3:1"].info.Component = "sidecar\\\"\n\xff"
	check("a store changes", "10.0.0.2:1", "10.0.0.3:1", "fixed:1")
	dialled["10.0.0.3:1"].infoErr, dialled["fixed:1"].infoErr = errBroken, errBroken
	check("stores are down", "10.0.0.2:1", "10.0.0.3:1 down", "fixed:1 down")
	var page strings.Builder
	set.WritePrometheus(&page)
	if !strings.Contains(page.String(), `# HELP ferula_query_stores Number of stores by component and state.
# TYPE ferula_query_stores gauge
ferula_query_stores{component="",up="false"} 1
ferula_query_stores{component="",up="true"} 1
ferula_query_stores{component="sidecar\\\"\n�",up="false"} 1
`) || !strings.Contains(page.String(), `thanos_store_nodes_grpc_connections{external_labels="",store_type=""} 1`) ||
		!strings.Contains(page.String(), "thanos_query_endpoints_dns_lookups_total 3\n") || !strings.Contains(page.String(), "thanos_query_endpoints_dns_failures_total 1\n") ||
		strings.Contains(page.String(), `store="10.0.0.1:1"`) {
		t.Errorf("metrics:\n%s", page.String())
	}
	now = now.Add(61 * time.Second)
	check("for long", "10.0.0.2:1", "fixed:1 down")
	if c, err := e.choose(Request{}, func(*storeapi.Info) bool { return true }); err != nil || len(c.stores) != 2 || len(c.missing) != 1 {
		t.Errorf("chosen: %v %v", c, err)
	} else {
		c.release()
	}
	dialled["10.0.0.3:1"].infoErr = nil
	check("again there", "10.0.0.2:1", "10.0.0.3:1", "fixed:1 down")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e.Run(ctx)
	for name, f := range dialled {
		if !f.closed {
			t.Errorf("%s is open at the end", name)
		}
	}
}

func TestEndpoints_ConnectionInUseIsClosedAfterIt(t *testing.T) {
	s := &fakeStore{stall: true}
	f, e := newTestFanout(t, Options{}, s)
	q, _ := f.Queryable(Request{}).Querier(0, 10)
	set := q.Select(context.Background(), false, nil)
	for range 30_000 {
		if s.mu.Lock(); s.open == 1 {
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	e.replace(nil)
	if s.closed {
		t.Error("closed while a query reads")
	}
	_ = q.Close()
	if set.Next() || !s.closed {
		t.Error("not closed")
	}
}

func TestFiles_Read(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := Files{
		ConfigFile: write("endpoints.yml", `default_client_config: {server_name: all, tls_config: {ca_file: ca, min_version: "1.2"}}
endpoints:
- address: a:1
  strict: true
- {address: dns+b:1, group: true, service_config: '{"x": 1}'}
- {address: dnssrv+g, group: true, client_config: {tls_config: {enabled: false}, compression: snappy}}
- {address: f:1, client_config: {server_name: f, tls_config: {cert_file: c, key_file: k, insecure_skip_verify: false}}}
`),
		Discovery: []string{filepath.Join(dir, "sd-*")},
	}
	write("sd-1.json", `[{"targets": ["c:1", "dns+d:1"], "labels": {"x": "y"}}]`)
	write("sd-2.yaml", "- targets: [e:1]\n")
	got, err := files.Read()
	common := ClientConfig{TLS: "true", CA: "ca", ServerName: "all", MinVersion: "1.2"}
	grouped, plain, own := common, common, common
	grouped.ServiceConfig, plain.TLS, plain.Compression = `{"x": 1}`, "false", "snappy"
	own.ServerName, own.Cert, own.Key, own.SkipVerify = "f", "c", "k", "false"
	want := []Address{
		{Name: "a:1", Strict: true, Client: common}, {Name: "b:1", Group: true, Client: grouped}, {Name: "dnssrv+g", Group: true, Client: plain}, {Name: "f:1", Client: own},
		{Name: "c:1"}, {Name: "dns+d:1"}, {Name: "e:1"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	for _, text := range []string{
		"endpoints: [{address: a:1, client_config: {compression: lzma}}]", "default_client_config: {nonsense: 1}",
		"endpoints: [{address: nonsense+a, group: true}]", "endpoints: [{address: dns+a:1, strict: true}]", "endpoints: [{}]", "nonsense: 1", "endpoints: 1",
	} {
		if _, err := (Files{Config: []byte(text)}).Read(); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestFiles_WatchSeesEveryChange(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("endpoints.yml", "endpoints: []\n")
	changed := Files{ConfigFile: filepath.Join(dir, "endpoints.yml"), Discovery: []string{filepath.Join(dir, "sd-*")}}.Watch()
	check := func(when string, want bool) {
		t.Helper()
		if got := changed(); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	check("at first", false)
	write("endpoints.yml", "endpoints: [{address: a:1}]\n")
	check("after a write", true)
	check("afterwards", false)
	write("sd-1.json", "[]")
	check("after a new file", true)
	if err := os.Remove(filepath.Join(dir, "endpoints.yml")); err != nil {
		t.Fatal(err)
	}
	check("after a removal", true)
}

// A changed file is read at the next update. An endpoint that cannot be connected is missing.
func TestEndpoints_ChangedFilesAreReadAtOnce(t *testing.T) {
	addresses, changed := []Address{{Name: "a:1"}}, false
	dialled := map[Address]*fakeStore{}
	e := NewEndpoints(EndpointsOptions{
		Dynamic:        func() ([]Address, error) { return addresses, nil },
		DynamicChanged: func() bool { return changed },
		Dial: func(a Address) (Client, error) {
			if a.Client.CA == "absent" {
				return nil, errBroken
			}
			dialled[a] = &fakeStore{}
			return dialled[a], nil
		},
	})
	t.Cleanup(e.Close)
	e.Update(t.Context())
	secured := Address{Name: "a:1", Client: ClientConfig{TLS: "true"}}
	addresses = []Address{secured, {Name: "b:1", Client: ClientConfig{CA: "absent"}}}
	e.Update(t.Context())
	if len(dialled) != 1 {
		t.Errorf("read although nothing has changed: %v", dialled)
	}
	changed = true
	e.Update(t.Context())
	if len(dialled) != 2 || !dialled[Address{Name: "a:1"}].closed || dialled[secured].closed {
		t.Errorf("another configuration needs another connection: %v", dialled)
	}
	c, err := e.choose(Request{}, func(*storeapi.Info) bool { return true })
	if err != nil || len(c.stores) != 1 || len(c.missing) != 1 || !strings.Contains(c.missing[0].Error(), "b:1") {
		t.Errorf("%+v %v", c, err)
	} else {
		c.release()
	}
}

func TestEndpoints_StrictDuplicateWins(t *testing.T) {
	for _, static := range [][]Address{{{Name: "a:1"}, {Name: "a:1", Strict: true}}, {{Name: "a:1", Strict: true}, {Name: "a:1"}}} {
		e := NewEndpoints(EndpointsOptions{Static: static, Dial: func(Address) (Client, error) { return &fakeStore{}, nil }})
		e.Update(t.Context())
		if got := e.Statuses(); len(got) != 1 || !got[0].Strict {
			t.Errorf("%v: %v", static, got)
		}
		e.replace(nil)
	}
}

// A store whose name no longer resolves to its address is reported as missing until the address returns, another store
// has the same Info, or UnhealthyTimeout has passed. A name without addresses is reported as missing, too.
func TestEndpoints_UnresolvedAddressesAreMissing(t *testing.T) {
	now := time.Unix(1000, 0)
	z := &zone{hosts: map[string][]string{"stores": {"10.0.0.1", "10.0.0.2"}}}
	replica := map[string]string{"10.0.0.1:1": "a", "10.0.0.2:1": "b", "10.0.0.3:1": "a"}
	e := NewEndpoints(EndpointsOptions{
		Static:   []Address{{Name: "dns+stores:1"}, {Name: "dns+later:1"}},
		Resolver: z, Now: func() time.Time { return now }, DNSInterval: 30 * time.Second, UnhealthyTimeout: time.Minute,
		Dial: func(a Address) (Client, error) {
			address := a.Name
			return &fakeStore{info: storeapi.Info{Component: "sidecar", LabelSets: []labels.Labels{labels.FromStrings("replica", replica[address])}}}, nil
		},
	})
	defer e.replace(nil)
	check := func(what string, seconds int, want ...string) {
		t.Helper()
		now = now.Add(time.Duration(seconds) * time.Second)
		e.Update(t.Context())
		anyOf := func(value string) func(*storeapi.Info) bool {
			return func(info *storeapi.Info) bool {
				return mayHold(info, 0, 1, []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "replica", value)})
			}
		}
		c, err := e.choose(Request{}, anyOf(".*"))
		if err != nil {
			t.Fatal(err)
		}
		c.release()
		if len(c.missing) != len(want) {
			t.Errorf("%s: missing %q, want %q", what, c.missing, want)
			return
		}
		for i, w := range want {
			if !strings.Contains(c.missing[i].Error(), w) {
				t.Errorf("%s: missing %q, want %q", what, c.missing, want)
			}
		}
		_, err = e.choose(Request{AbortOnPartial: true}, anyOf(".*"))
		if len(want) > 0 && !errors.Is(err, storeapi.ErrUnavailable) {
			t.Errorf("%s: a request that must miss nothing: %v", what, err)
		}
		if c, err := e.choose(Request{}, anyOf("nothing has this")); err != nil || len(c.missing) > 0 && !strings.HasPrefix(c.missing[0].Error(), "store dns+") {
			t.Errorf("%s: what cannot hold anything is missed: %v", what, c.missing)
		}
	}
	check("a name without addresses", 0, "dns+later:1")
	z.hosts["later"] = []string{"10.0.0.9"}
	check("it has one", 31)
	z.hosts["stores"] = []string{"10.0.0.2"}
	check("a store has left", 31, "10.0.0.1:1")
	check("it is not back", 31, "10.0.0.1:1")
	z.hosts["stores"] = []string{"10.0.0.1", "10.0.0.2"}
	check("it is back", 31)
	z.hosts["stores"] = []string{"10.0.0.2", "10.0.0.3"}
	check("another has its place", 31)
	z.hosts["stores"] = nil
	check("all have left", 31, "10.0.0.2:1", "10.0.0.3:1")
	check("one second later", 31, "10.0.0.2:1", "10.0.0.3:1")
	check("for long", 31)
	z.err, z.hosts["later"] = errors.New("no response"), nil
	check("the name server is down", 31, "dns+stores:1") // names with addresses retain them
	e.opts.Static = append(e.opts.Static, Address{Name: "dns+new:1"})
	check("and was so from the beginning", 31, "dns+new:1", "dns+stores:1")
	check("it still is", 301, "dns+new:1", "dns+stores:1")
	z.err = nil
	z.hosts["stores"] = []string{"10.0.0.2"}
	z.hosts["later"], z.hosts["new"] = []string{"10.0.0.9"}, []string{"10.0.0.8"}
	check("it is back, too", 31)
}

// polledStore fails a poll whose context is done, as a gRPC client does.
type polledStore struct {
	*fakeStore
	polls int
}

func (p *polledStore) Info(ctx context.Context) (storeapi.Info, error) {
	p.polls++
	if err := ctx.Err(); err != nil {
		return storeapi.Info{}, err
	}
	return p.fakeStore.Info(ctx)
}

func TestEndpoints_CancelledPollChangesNothing(t *testing.T) {
	var logged strings.Builder
	now := time.Unix(1000, 0)
	s := &polledStore{fakeStore: &fakeStore{info: storeapi.Info{Component: "sidecar"}}}
	e := NewEndpoints(EndpointsOptions{
		Static: []Address{{Name: "a:1"}}, Now: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Dial: func(Address) (Client, error) { return s, nil },
	})
	defer e.replace(nil)
	e.Update(t.Context())
	before := e.Statuses()
	if len(before) != 1 || before[0].LastError != nil || !strings.Contains(logged.String(), "Store is up") {
		t.Fatalf("%+v\n%s", before, logged.String())
	}
	logged.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	now = now.Add(time.Minute)
	e.poll(ctx, (*e.current.Load())[0])
	if after := e.Statuses(); s.polls != 2 || !reflect.DeepEqual(after, before) || logged.String() != "" {
		t.Errorf("%d polls, %+v, before %+v\n%s", s.polls, after, before, logged.String())
	}
	// A poll that took too long is a failure of the store.
	ended, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer stop()
	e.poll(ended, (*e.current.Load())[0])
	if after := e.Statuses(); !errors.Is(after[0].LastError, context.DeadlineExceeded) || !strings.Contains(logged.String(), "Store is down") {
		t.Errorf("%+v\n%s", after, logged.String())
	}
}
