package storeapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/series"
	floats "github.com/ferula-io/ferula/internal/series/xor"
)

func summaryChunk(t *testing.T, c series.Chunk) series.Chunk {
	t.Helper()
	points, err := floats.AppendPoints([]promql.FPoint(nil), c.Data, floats.Ascending)
	s, ok := series.SummaryOf(points)
	if err != nil || !ok {
		t.Fatal("no summary")
	}
	c.Encoding, c.Data = series.Summarized, series.AppendSummary(nil, s)
	return c
}

// A summary reaches a client that asked for it, byte by byte. From a server that sends it to another client, it is an error.
func TestSeries_Summaries(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	first := gaugeChunk(rng, 1000, 120)
	second := gaugeChunk(rng, first.MaxMS+1000, 120)
	src := &memorySource{rows: []row{{labels: labels.FromStrings("__name__", "requests_total"), chunks: []series.Chunk{summaryChunk(t, first), second}}}}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	windows := series.Windows{Ends: series.Steps{FirstMS: 1, LastMS: 2, StepMS: 1}, RangeMS: 3, MaxMS: 1 << 50, Whole: true, Starts: true}
	for _, wanted := range []*series.Summaries{{Windows: windows}, {Windows: windows, Apart: true, Rising: true}} {
		r := atSteps(nil)
		r.Summaries = wanted
		got, err := read(t, client.Series(context.Background(), r))
		if err != nil {
			t.Fatal(err)
		}
		check(t, got, src.rows)
	}
	if _, err := read(t, client.Series(context.Background(), atSteps(nil))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a summary that was not requested: %v", err)
	}
	for name, bad := range map[string]series.Windows{"no step": {Ends: series.Steps{LastMS: 1}}, "end before start": {Ends: series.Steps{FirstMS: 2, LastMS: 1, StepMS: 1}},
		"negative range": {Ends: series.Steps{LastMS: 1, StepMS: 1}, RangeMS: -1}} {
		r := atSteps(nil)
		r.Summaries = &series.Summaries{Windows: bad}
		if _, err := read(t, client.Series(context.Background(), r)); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request at steps gets the same bytes from a summary as from the chunk, alone and joined with others.
func TestServer_LeavesOutSamplesOfSummaries(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	used := 0
	for range 300 {
		steps := series.Steps{FirstMS: rng.Int64N(1e7), LastMS: 1e9, StepMS: stepLeastMS + rng.Int64N(2e7)}
		r := SeriesRequest{MaxMS: 1 << 50, Matchers: all(), Steps: &steps, JoinMS: []int64{0, 7_200_000, JoinAny}[rng.IntN(3)]}
		wanted := stepsSummaries(r)
		var whole, short []series.Chunk
		for at, n := int64(1000), 0; n < 20; n++ {
			c := gaugeChunk(rng, at, 1+rng.IntN(130))
			at = c.MaxMS + 1 + rng.Int64N(1e6)
			whole = append(whole, c)
			summary := summaryChunk(t, c)
			if s, _ := summary.Summary(); wanted.Enough(c.MinMS, c.MaxMS) && s.Count >= 2*samplesPerStep {
				c = summary
				used++
			}
			short = append(short, c)
		}
		var got [2][]row
		for i, chunks := range [][]series.Chunk{whole, short} {
			src := &memorySource{rows: []row{{labels: labels.FromStrings("__name__", "requests_total"), chunks: chunks}}}
			f := (&Server{src: src}).stepsFilter(r)
			got[i] = []row{{labels: src.rows[0].labels, chunks: f.thin(f.cut(chunks))}}
		}
		check(t, got[1], got[0])
	}
	if used < 1000 {
		t.Errorf("%d summaries", used)
	}
}
