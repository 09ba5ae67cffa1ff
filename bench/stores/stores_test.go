package stores

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// withSamples is a series whose chunks have a sample at each of these seconds: its value is the time, and add more.
func withSamples(t *testing.T, label string, add float64, chunks ...[]int64) Series {
	t.Helper()
	one := Series{Labels: []byte(label)}
	for _, seconds := range chunks {
		times, values := make([]int64, len(seconds)), make([]float64, len(seconds))
		for i, s := range seconds {
			times[i], values[i] = s*1000, float64(s)+add
		}
		encoded, err := Chunks(times, values)
		if err != nil {
			t.Fatal(err)
		}
		one.Chunks = append(one.Chunks, encoded...)
	}
	return one
}

func digestOf(t *testing.T, d Digest, all ...Series) Digest {
	t.Helper()
	for _, s := range all {
		if err := d.Add(s.Labels, s.Chunks); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestDigest_OtherContentsHaveAnotherOne(t *testing.T) {
	a, b := withSamples(t, "a", 0, []int64{3, 4}, []int64{5, 6}), withSamples(t, "b", 0, []int64{3})
	samples := Digest{Samples: true, MinMS: 3000, MaxMS: 6000}
	whole, cut := digestOf(t, Digest{}, a, b), digestOf(t, samples, a, b)
	if cut.Count != 5 {
		t.Errorf("%d samples, want 5", cut.Count)
	}
	divided := withSamples(t, "a", 0, []int64{1, 2, 3, 4, 5}, []int64{6, 7})
	if d := digestOf(t, samples, divided, b); d.Sum() != cut.Sum() {
		t.Error("the division into chunks makes a difference for samples")
	}
	if d := digestOf(t, Digest{}, divided, b); d.Sum() == whole.Sum() {
		t.Error("the division into chunks makes no difference for chunks")
	}
	for what, other := range map[string][]Series{
		"order": {b, a}, "number": {a}, "labels": {withSamples(t, "c", 0, []int64{3, 4}, []int64{5, 6}), b},
		"values": {withSamples(t, "a", 1, []int64{3, 4}, []int64{5, 6}), b}, "times": {withSamples(t, "a", 0, []int64{3, 4}, []int64{5}), b},
	} {
		if digestOf(t, Digest{}, other...).Sum() == whole.Sum() || digestOf(t, samples, other...).Sum() == cut.Sum() {
			t.Errorf("other %s make no difference", what)
		}
	}
	if err := new(Digest).Add(nil, nil); err != nil {
		t.Error(err)
	}
	if err := samples.Add(nil, []series.Chunk{{Encoding: 99}}); err == nil {
		t.Error("a chunk of another encoding is accepted")
	}
}

// serve serves a store and returns a client of it.
func serve(t *testing.T, m *Memory, opts storeapi.ClientOptions) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(m, storeapi.ServerOptions{}).Register(server)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	c, err := Dial(l.Addr().String(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); server.Stop(); <-done })
	return c
}

var spec = blocks.Spec{Metric: "m", Values: blocks.Floats15, Series: 25, Samples: 250, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1}

func TestMemory_SendsEverySampleOfTheSpec(t *testing.T) {
	all, err := Encode(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, &Memory{External: labels.FromStrings("store", "a"), Times: storeapi.TimeRange{MaxMS: 1}, Select: Held(all)}, storeapi.ClientOptions{})
	for store, want := range map[string]int{"a": spec.Series, "b": 0} {
		d := Digest{Samples: true, MinMS: spec.StartMS, MaxMS: spec.EndMS()}
		r := Request("m", spec.StartMS, spec.EndMS(), labels.MustNewMatcher(labels.MatchEqual, "store", store))
		a, err := c.Receive(t.Context(), r, d.Add)
		if err != nil || a.Series != want || a.Chunks != 3*want || d.Count != want*spec.Samples {
			t.Errorf("store %s: %+v with %d samples, %v", store, a, d.Count, err)
		}
		if want > 0 && (a.Messages == 0 || a.Bytes < int64(want*spec.Samples*7)) {
			t.Errorf("%d messages of %d bytes", a.Messages, a.Bytes)
		}
	}
}

func TestCompare_OtherSeriesAreAnError(t *testing.T) {
	all, err := Encode(spec)
	if err != nil {
		t.Fatal(err)
	}
	r := Request("m", spec.StartMS, spec.EndMS())
	whole := serve(t, &Memory{Select: Held(all)}, LikeThanos)
	again := serve(t, &Memory{Select: Held(all)}, storeapi.ClientOptions{})
	less, none := serve(t, &Memory{Select: Held(all[1:])}, LikeThanos), serve(t, &Memory{Select: Held(nil)}, LikeThanos)
	other := slices.Clone(all)
	other[3].Chunks = other[4].Chunks
	if found, _, err := Compare(t.Context(), r, false, whole, again); err != nil || len(found) != 2 || found[1].Series != spec.Series {
		t.Errorf("equal series: %v, %v", found, err)
	}
	for want, with := range map[error][]*Client{
		area.ErrUnequal: {less, serve(t, &Memory{Select: Held(other)}, LikeThanos)}, area.ErrEmpty: {none},
	} {
		for _, c := range with {
			if _, _, err := Compare(t.Context(), r, true, whole, c); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
	}
	if _, _, err := Compare(t.Context(), r, false, none, none); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("no series: got %v", err)
	}
}
