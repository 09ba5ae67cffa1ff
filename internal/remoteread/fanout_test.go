package remoteread

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
)

// readFanout reads through both interfaces and compares the results.
func readFanout(t *testing.T, f *Fanout, mint, maxt int64) (got summary, warnings string) {
	t.Helper()
	q, err := f.Querier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), true, nil, everything)
	got = sum(t, set, asIs)
	if raw := sumOf(t, NewClient(ClientOptions{URL: serve(t, f, Options{Partial: true})}), mint, maxt); raw != got {
		t.Errorf("by remote read %+v, samples %+v", raw, got)
	}
	if err := errors.Join(set.Warnings().AsErrors()...); err != nil {
		warnings = err.Error()
	}
	return got, warnings
}

func TestFanout_MergesLocalAndRemoteSeries(t *testing.T) {
	local, far, both := open(t, t.TempDir()), open(t, t.TempDir()), open(t, t.TempDir())
	fill(t, far, 30, startMS, startMS+hourMS, 30_000)
	fill(t, local, 20, startMS+hourMS, startMS+2*hourMS, 30_000)
	fill(t, both, 30, startMS, startMS+hourMS, 30_000)
	fill(t, both, 20, startMS+hourMS, startMS+2*hourMS, 30_000)
	mint, maxt := startMS, startMS+9*hourMS
	want, _ := readFanout(t, NewFanout(both), mint, maxt)
	external := labels.FromStrings("host", "x", "zone", "y") // these sort before and after labels of the series
	address := serve(t, far, Options{ExternalLabels: func() labels.Labels { return external }})
	f := NewFanout(local)
	f.SetEndpoints([]Endpoint{{Client: NewClient(ClientOptions{URL: address}), ExternalLabels: external}})
	if got, warnings := readFanout(t, f, mint, maxt); got != want || warnings != "" || want.samples < 1000 {
		t.Errorf("%+v, want %+v, %s", got, want, warnings)
	}
	// Where the local storage is complete the endpoint gets no request.
	alone, _ := readFanout(t, NewFanout(local), startMS+hourMS+1, maxt)
	f.SetEndpoints([]Endpoint{{Client: NewClient(ClientOptions{URL: "http://127.0.0.1:1/", Tries: 1}), LocalStart: func() (int64, error) { return startMS + hourMS, nil }}})
	if got, warnings := readFanout(t, f, startMS+hourMS+1, maxt); got != alone || warnings != "" {
		t.Errorf("%+v, want %+v, %s", got, alone, warnings)
	}
	if got, warnings := readFanout(t, f, startMS+hourMS, maxt); got.series != alone.series || !strings.Contains(warnings, "unavailable") {
		t.Errorf("%+v, %q", got, warnings)
	}
	f.SetEndpoints([]Endpoint{{LocalStart: func() (int64, error) { return 0, errors.New("not yet") }}})
	if _, err := f.Querier(mint, maxt); err == nil {
		t.Error("a querier without a local start")
	}
}

func TestEndpoint_ChecksRequiredMatchersAndAddsExternalLabels(t *testing.T) {
	e := Endpoint{
		ExternalLabels:   labels.FromStrings("cluster", "eu", "zone", "1"),
		RequiredMatchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "tier", "old")},
	}
	if e.required([]*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "tier", "old")}) {
		t.Error("a regular expression is not the matcher that is required")
	}
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "tier", "old"), labels.MustNewMatcher(labels.MatchNotEqual, "zone", "2")}
	narrowed, added := e.narrow(matchers)
	if !e.required(matchers) || len(added) != 1 || added[0] != "cluster" || len(narrowed) != 3 || narrowed[2].String() != `cluster="eu"` || len(matchers) != 2 {
		t.Error(narrowed, added)
	}
}

// An engine may begin a selection while it reads another.
func TestFanout_SelectsAfterTheFirstNext(t *testing.T) {
	local, far := open(t, t.TempDir()), open(t, t.TempDir())
	fill(t, far, 30, startMS, startMS+hourMS, 30_000)
	fill(t, local, 20, startMS+hourMS, startMS+2*hourMS, 30_000)
	f := NewFanout(local)
	f.SetEndpoints([]Endpoint{{Client: NewClient(ClientOptions{URL: serve(t, far, Options{})})}})
	q, err := f.Querier(startMS, startMS+9*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var sums []summary
	for range 3 {
		sums = append(sums, sum(t, q.Select(context.Background(), true, nil, everything), asIs))
	}
	if sums[0].samples < 1000 || sums[1] != sums[0] || sums[2] != sums[0] {
		t.Errorf("%+v", sums)
	}
}

// A query may have selections that are days apart, and a list of series needs no samples.
func TestFanout_ReadsWhatTheHintsAskFor(t *testing.T) {
	local, far := open(t, t.TempDir()), open(t, t.TempDir())
	fill(t, local, 20, startMS, startMS+2*hourMS, 30_000)
	f := NewFanout(local)
	f.SetEndpoints([]Endpoint{{Client: NewClient(ClientOptions{URL: serve(t, far, Options{})})}})
	q, err1 := f.Querier(startMS, startMS+9*hourMS)
	alone, err2 := local.Querier(startMS, startMS+9*hourMS)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	defer alone.Close()
	hints := &storage.SelectHints{Start: startMS + hourMS, End: startMS + hourMS + 60_000}
	got, want := sum(t, q.Select(t.Context(), true, hints, everything), asIs), sum(t, alone.Select(t.Context(), true, hints, everything), asIs)
	if got != want || want.samples != 3*want.series {
		t.Errorf("%+v, want %+v", got, want)
	}
	hints.Func = "series"
	n, set := 0, q.Select(t.Context(), true, hints, everything)
	for ; set.Next(); n++ {
		if set.At().Iterator(nil).Next() != chunkenc.ValNone {
			t.Error("samples are read")
		}
	}
	if set.Err() != nil || n != want.series {
		t.Errorf("%d series, %v", n, set.Err())
	}
	names, warned, err1 := q.LabelNames(t.Context(), nil)
	values, alsoWarned, err2 := q.LabelValues(t.Context(), "job", nil)
	if err := errors.Join(err1, err2); err != nil || len(names) < 3 || len(values) != 1 {
		t.Errorf("%q, %q, %v", names, values, err)
	}
	for _, w := range []annotations.Annotations{warned, alsoWarned} {
		if !errors.Is(errors.Join(w.AsErrors()...), ErrLabels) {
			t.Errorf("no warning that labels of the endpoint are missing: %v", w)
		}
	}
}
