package remoteread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// framesOf returns a stream of series of one chunk each, in this order.
func framesOf(sets ...labels.Labels) []byte {
	var all []byte
	for _, set := range sets {
		start := len(all)
		all = appendFrameHead(all, 0, labelenc.Append(nil, set), chunkSize(1, 2, 1, 10))
		all = sealFrame(appendChunk(all, 1, 2, 1, make([]byte, 10)), start, 0)
	}
	return all
}

// texts reads a set.
func texts(t *testing.T, set series.Set) (all []string, err error) {
	t.Helper()
	var builder labels.ScratchBuilder
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, lset.String()); len(set.Chunks()) != 1 {
			t.Errorf("%s has %d chunks", lset, len(set.Chunks()))
		}
	}
	return all, set.Err()
}

var (
	euZ  = labels.FromStrings("m", "eu")
	aEU  = labels.FromStrings("a", "1", "m", "eu")
	abEU = labels.FromStrings("a", "1", "b", "2", "m", "eu")
	cEU  = labels.FromStrings("c", "1", "m", "eu")
)

func TestSelectWithout_SortsUnlessTheServerDoes(t *testing.T) {
	for name, tt := range map[string]struct {
		sent    []labels.Labels
		without labels.Labels
		inOrder bool
		want    string
		err     error
	}{
		"nothing to remove":      {[]labels.Labels{abEU, aEU, cEU}, labels.EmptyLabels(), true, `[{a="1", b="2", m="eu"} {a="1", m="eu"} {c="1", m="eu"}]`, nil},
		"in order":               {[]labels.Labels{aEU, abEU, cEU}, euZ, true, `[{a="1"} {a="1", b="2"} {c="1"}]`, nil},
		"out of order":           {[]labels.Labels{cEU, labels.FromStrings("d", "1", "m", "eu"), aEU}, euZ, true, `[{c="1"}]`, ErrLimit},
		"two out of order":       {[]labels.Labels{cEU, aEU}, euZ, true, `[{a="1"} {c="1"}]`, nil},
		"sorted by the client":   {[]labels.Labels{cEU, abEU, aEU}, euZ, false, `[{a="1"} {a="1", b="2"} {c="1"}]`, nil},
		"a label is missing":     {[]labels.Labels{aEU, labels.FromStrings("c", "1")}, euZ, true, `[{a="1"}]`, ErrLabelMissing},
		"the first lacks it":     {[]labels.Labels{labels.FromStrings("c", "1")}, euZ, false, `[]`, ErrLabelMissing},
		"nothing":                {nil, euZ, true, `[]`, nil},
		"one of the same labels": {[]labels.Labels{aEU, aEU}, euZ, true, `[{a="1"}]`, nil},
	} {
		client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(framesOf(tt.sent...))), Tries: 1})
		q, err := client.RawQuerier(context.Background(), 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		if name == "one of the same labels" { // the client joins frames of one series
			set := q.(*Querier).SelectWithout(context.Background(), tt.without, tt.inOrder, everything)
			if !set.Next() || len(set.Chunks()) != 2 || set.Next() || set.Err() != nil {
				t.Errorf("%s: %v", name, set.Err())
			}
		} else if got, err := texts(t, q.(*Querier).SelectWithout(context.Background(), tt.without, tt.inOrder, everything)); fmt.Sprint(got) != tt.want || !errors.Is(err, tt.err) || tt.err == nil && err != nil {
			t.Errorf("%s: %v, %v, want %s, %v", name, got, err, tt.want, tt.err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSelectUnordered_KeepsTheOrderOfTheServer(t *testing.T) {
	client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(framesOf(cEU, aEU, abEU, aEU))), HoldBytesMax: 1})
	for want, without := range map[string]labels.Labels{
		`[{c="1"} {a="1"} {a="1", b="2"} {a="1"}]`: euZ, `[{c="1", m="eu"} {a="1", m="eu"} {a="1", b="2", m="eu"} {a="1", m="eu"}]`: labels.EmptyLabels(),
	} {
		q, err := client.RawQuerier(context.Background(), 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := texts(t, q.(*Querier).SelectUnordered(context.Background(), without, everything)); fmt.Sprint(got) != want || err != nil {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSelectWithout_ServersThatFailAreUnavailable(t *testing.T) {
	client := NewClient(ClientOptions{URL: "http://127.0.0.1:1/", Tries: 1})
	for _, inOrder := range []bool{false, true} {
		q, err := client.RawQuerier(context.Background(), 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := texts(t, q.(*Querier).SelectWithout(context.Background(), euZ, inOrder, everything)); got != nil || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, %v", got, err)
		}
		if names, err := q.LabelNames(context.Background(), series.SelectOptions{}); names != nil || !errors.Is(err, ErrLabels) {
			t.Errorf("%v, %v", names, err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A merge of sets finds the next one by the labels ahead, if they are known.
func TestOrderedSet_AheadIsTheNextSeries(t *testing.T) {
	for name, tt := range map[string]struct {
		sent  []labels.Labels
		ahead []string
	}{
		"all have it":   {[]labels.Labels{aEU, abEU, cEU}, []string{`{a="1", b="2"}`, `{c="1"}`, ""}},
		"the next does": {[]labels.Labels{aEU, labels.FromStrings("c", "1")}, []string{""}},
	} {
		client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(framesOf(tt.sent...)))})
		q, err := client.RawQuerier(context.Background(), 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		set := q.(*Querier).SelectWithout(context.Background(), euZ, true, everything)
		for _, want := range tt.ahead {
			if !set.Next() {
				t.Fatal(set.Err())
			}
			got := ""
			if next := set.(interface{ Ahead() []byte }).Ahead(); next != nil {
				got = labelenc.Text(next)
			}
			if got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if set.Next() || set.(interface{ Ahead() []byte }).Ahead() != nil || !errors.Is(set.Err(), errClosed) {
			t.Errorf("%s: a closed set: %v", name, set.Err())
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	buffered := &orderedSet{current: &bufferedSeries{}}
	if buffered.Ahead() != nil || (&orderedSet{pending: true}).Ahead() != nil || (&orderedSet{done: true}).Ahead() != nil || (&orderedSet{buffered: seriesHeap{nil}}).Ahead() != nil {
		t.Error("labels that are not known")
	}
}

func TestMatchersOrMissing_MatchWhatMayMatch(t *testing.T) {
	values := []string{"", "eu", "us", "e.u"}
	for _, kind := range []labels.MatchType{labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp} {
		for _, pattern := range []string{"", "eu", "us", "e.u", "eu|us", ".+", ".*"} {
			for _, external := range []string{"eu", "us"} {
				m := labels.MustNewMatcher(kind, "m", pattern)
				all := matchersOrMissing(m, external)
				for _, v := range values {
					set := v
					if v == "" {
						set = external
					}
					sent := !slices.ContainsFunc(all, func(m *labels.Matcher) bool { return !m.Matches(v) })
					if m.Matches(set) && !sent {
						t.Errorf("%s with %q: a series with %q is missed by %s", m, external, v, all)
					}
					if all != nil && !m.Matches(set) && sent {
						t.Errorf("%s with %q: a series with %q is sent for %s", m, external, v, all)
					}
				}
			}
		}
	}
}

func TestEndpointError_NamesTheEndpoint(t *testing.T) {
	from := &endpointQuerier{endpoint: Endpoint{Name: "far"}}
	set := from.bestEffort(series.Failed(io.ErrUnexpectedEOF))
	for range 2 {
		if set.Next() || set.Err() != nil {
			t.Error(set.Err())
		}
	}
	warnings := set.Warnings().AsErrors()
	if len(warnings) != 1 || !errors.Is(warnings[0], io.ErrUnexpectedEOF) || warnings[0].Error() != "the series of the remote_read endpoint far are missing: unexpected EOF" {
		t.Errorf("%v", warnings)
	}
	if set := from.bestEffort(series.Failed(nil)); set.Next() || set.Err() != nil || len(set.Warnings()) != 0 {
		t.Errorf("%v, %v", set.Err(), set.Warnings())
	}
}

func TestAppendCut_CutsEveryKindOfChunk(t *testing.T) {
	chunkOf := func(kind chunkenc.ValueType) series.Chunk {
		c, err := kind.NewChunk(false, false)
		if err != nil {
			t.Fatal(err)
		}
		app, err := c.Appender()
		if err != nil {
			t.Fatal(err)
		}
		for at := range int64(10) {
			switch kind {
			case chunkenc.ValFloat:
				app.Append(0, at, float64(at))
			case chunkenc.ValHistogram:
				_, _, app, err = app.AppendHistogram(nil, 0, at, tsdbutil.GenerateTestHistogram(at), false)
			default:
				_, _, app, err = app.AppendFloatHistogram(nil, 0, at, tsdbutil.GenerateTestFloatHistogram(at), false)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return series.Chunk{MinMS: 0, MaxMS: 9, Encoding: c.Encoding(), Data: c.Bytes()}
	}
	for _, kind := range []chunkenc.ValueType{chunkenc.ValFloat, chunkenc.ValHistogram, chunkenc.ValFloatHistogram} {
		whole := chunkOf(kind)
		got, err := appendCut([]series.Chunk{{MinMS: 77}}, whole, 3, 6)
		if err != nil || len(got) != 2 || got[0].MinMS != 77 || got[1].MinMS != 3 || got[1].MaxMS != 6 || got[1].Encoding != whole.Encoding {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
		if got, err := appendCut(nil, whole, 20, 30); err != nil || len(got) != 0 {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
		if kind == chunkenc.ValHistogram {
			continue // Prometheus' iterator reads beyond the end of most cuts
		}
		cut := whole
		cut.Data = whole.Data[:len(whole.Data)/2]
		if _, err := appendCut(nil, cut, 3, 9); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s that is cut: %v", kind, err)
		}
	}
	if _, err := appendCut(nil, series.Chunk{Encoding: 99}, 0, 9); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestClient_RequestsHaveTheGivenHeadersAndThoseOfTheProtocol(t *testing.T) {
	seen := make(chan http.Header, 1)
	client := NewClient(ClientOptions{
		URL: serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen <- r.Header.Clone()
			streamOf(nil).ServeHTTP(w, r)
		})),
		Headers: map[string]string{"X-Team": "a", "Content-Type": "text/plain", "X-Prometheus-Remote-Read-Version": "9"},
	})
	set, end := raw(t, client, 0, 1, everything)
	if set.Next() || set.Err() != nil {
		t.Error(set.Err())
	}
	end()
	h := <-seen
	for name, want := range map[string]string{"X-Team": "a", "Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Read-Version": "0.1.0"} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if !strings.HasPrefix(h.Get("User-Agent"), "ferula") {
		t.Errorf("%q", h.Get("User-Agent"))
	}
}
