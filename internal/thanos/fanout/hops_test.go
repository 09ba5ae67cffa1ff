package fanout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// served is a store in memory as the source of a server.
type served struct{ *fakeStore }

func (served) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

func (served) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

// remote is a store behind a gRPC connection.
type remote struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

func (r remote) Series(ctx context.Context, request storeapi.SeriesRequest) storeapi.Stream {
	return r.Client.Series(ctx, request)
}

func (r remote) Close() error { return r.conn.Close() }

// listen serves a source over TCP.
func listen(t *testing.T, src storeapi.Source) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(src, storeapi.ServerOptions{}).Register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func dialStore(address string, opts storeapi.ClientOptions) (remote, error) {
	conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	return remote{storeapi.NewClient(conn, opts), conn}, err
}

// received reads all series of a store, a line each.
func received(t *testing.T, address string, opts storeapi.ClientOptions, r storeapi.SeriesRequest) (lines []string) {
	t.Helper()
	client, err := dialStore(address, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	set := client.Series(t.Context(), r)
	defer set.Close()
	for set.Next() {
		lines = append(lines, fmt.Sprintf("%q %v", set.Labels(), set.Chunks()))
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return lines
}

// hopForms are the forms of labels that clients request.
var hopForms = map[string]storeapi.ClientOptions{
	"Thanos": {NoExtension: true}, "plain": {NoDeltas: true}, "deltas": {},
}

// queriers serves a querier over the stores for each form, and returns their addresses.
func queriers(t *testing.T, stores []string) map[string]string {
	addresses := map[string]string{}
	for name, opts := range hopForms {
		eo := EndpointsOptions{Dial: func(a Address) (Client, error) { return dialStore(a.Name, opts) }}
		for _, address := range stores {
			eo.Static = append(eo.Static, Address{Name: address})
		}
		e := NewEndpoints(eo)
		e.Update(t.Context())
		t.Cleanup(func() { e.replace(nil) })
		addresses[name] = listen(t, New(e, Options{}).Source())
	}
	return addresses
}

// The labels of a response do not depend on the forms (strings or deltas) in which a chain of queriers has
// forwarded them.
func TestHops_LabelsAreEqualInEveryForm(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, stores := range []int{1, 4} {
		for range 2 {
			var addresses []string
			var direct []string
			for range stores {
				store := &fakeStore{strips: random.IntN(2) == 0, info: storeapi.Info{Store: &storeapi.StoreInfo{TimeRange: anyTime}}}
				store.info.Store.WithoutReplicaLabels = store.strips
				list := hopLabels(random, 50)
				if random.IntN(2) == 0 {
					list = hopProduct(random)
				}
				for _, lset := range list {
					store.series = append(store.series, one{labels: lset, chunks: []series.Chunk{encode(t, []sample{{t: int64(1 + random.IntN(3)), v: 1}})}})
				}
				addresses = append(addresses, listen(t, served{store}))
			}
			request := storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+")}}
			for _, address := range addresses {
				for name, opts := range hopForms {
					got := received(t, address, opts, request)
					if name == "Thanos" {
						direct = append(direct, got...)
					}
					if plain := received(t, address, storeapi.ClientOptions{NoExtension: true}, request); !slices.Equal(got, plain) {
						t.Fatalf("%s: a hop\n%.3000s\nwant\n%.3000s", name, strings.Join(got, "\n"), strings.Join(plain, "\n"))
					}
				}
			}
			first := queriers(t, addresses)
			second := queriers(t, []string{first["deltas"]})
			for _, without := range [][]string{nil, {"replica"}} {
				request.WithoutReplicaLabels = without
				want := received(t, first["Thanos"], storeapi.ClientOptions{NoExtension: true}, request)
				if len(want) == 0 || len(want) > len(direct) {
					t.Fatalf("%d series of %d", len(want), len(direct))
				}
				for _, hops := range []map[string]string{first, second} {
					for inner, address := range hops {
						for outer, opts := range hopForms {
							if got := received(t, address, opts, request); !slices.Equal(got, want) {
								t.Fatalf("%d stores, %s after %s: \n%.3000s\nwant\n%.3000s", stores, outer, inner, strings.Join(got, "\n"), strings.Join(want, "\n"))
							}
						}
					}
				}
			}
		}
	}
}

// hopLabels returns sorted label sets with labels, values and parts of values in common.
func hopLabels(random *rand.Rand, n int) (list []labels.Labels) {
	seen := map[string]bool{}
	for range n {
		b := labels.NewBuilder(labels.FromStrings("__name__", fmt.Sprint("metric_", random.IntN(3)), "replica", fmt.Sprint(random.IntN(2))))
		for _, name := range []string{"id", "instance", "pod", "zone"} {
			switch random.IntN(4) {
			case 0:
			case 1:
				b.Set(name, fmt.Sprint(random.IntN(5)))
			case 2:
				b.Set(name, fmt.Sprintf("10.0.%d.%d:9100", random.IntN(3), random.IntN(300)))
			default:
				b.Set(name, "/front/"+strings.Repeat(string(rune('a'+random.IntN(20))), 40)+"/end")
			}
		}
		if l := b.Labels(); !seen[l.String()] {
			seen[l.String()] = true
			list = append(list, l)
		}
	}
	slices.SortFunc(list, labels.Compare)
	return list
}

// hopProduct returns sorted label sets of metrics whose containers recur. Some are missing.
func hopProduct(random *rand.Rand) (list []labels.Labels) {
	for m := range 4 {
		for c := range 20 {
			if random.IntN(10) > 0 {
				list = append(list, labels.FromStrings("__name__", "metric_"+strings.Repeat("x", m), "id", fmt.Sprintf("%03d/%032x", c, uint64(c+1)*0x9E3779B97F4A7C15), "pod", strings.Repeat("p", c%3)+fmt.Sprint(c), "replica", fmt.Sprint(c%2)))
			}
		}
	}
	slices.SortFunc(list, labels.Compare)
	return list
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string                         { return "proto" }
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// rawStore serves a store that responds with the given bytes.
func rawStore(t *testing.T, response []byte) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "thanos.info.Info", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Info", Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			return []byte{3<<3 | 2, 2, 2 << 3, 100}, nil // a store with data up to the timestamp 100
		},
	}}}, rawCodec{})
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "thanos.Store", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Series", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error { return stream.SendMsg(response) },
	}}}, rawCodec{})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func TestHops_InvalidLabelsNameTheStore(t *testing.T) {
	field := func(n protowire.Number, body ...byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), body)
	}
	delta := func(delta string) []byte { return field(1, field(1, []byte(delta)...)...) }
	one := delta("\x01\x01b\x011") // {b="1"}
	for name, batch := range map[string][]byte{
		"a difference to nothing":      delta("\x00\x00\x00\x00"),
		"a truncated difference":       slices.Concat(one, delta("\x00\x00")),
		"more labels than there are":   slices.Concat(one, delta("\x18\x00\x00\x00")),
		"an unknown kind":              slices.Concat(one, delta("\x07")),
		"a label that was not sent":    slices.Concat(one, delta("\x05\x00")),
		"two differences":              field(1, slices.Concat(field(1, []byte("\x01\x01b\x011")...), field(2), field(1))...),
		"series that are out of order": slices.Concat(one, delta("\x01\x01a\x011")),
		"a truncated message":          {1<<3 | 2, 100},
	} {
		address := rawStore(t, field(90491, batch...))
		e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: address}}, Dial: func(a Address) (Client, error) { return dialStore(a.Name, storeapi.ClientOptions{}) }})
		e.Update(t.Context())
		f := New(e, Options{})
		_, _, warnings, err := read(t, f.Queryable(Request{}), 0, 50, nil)
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "store "+address) || !strings.Contains(warnings[0], "corrupt") {
			t.Errorf("%s: %q, %v", name, warnings, err)
		}
		if _, _, _, err := read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 50, nil); !errors.Is(err, storeapi.ErrCorrupt) && !errors.Is(err, labelenc.ErrCorrupt) || !strings.Contains(err.Error(), "store "+address) {
			t.Errorf("%s: %v", name, err)
		}
		e.replace(nil)
	}
}
