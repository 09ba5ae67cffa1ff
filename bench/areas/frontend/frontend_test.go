package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/proc"
)

func responseForTest(t *testing.T) *canned.Response {
	t.Helper()
	s := small
	s.Series = 30
	a, err := canned.Render(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// frontForTest returns a front that responds with a text, or compresses it, after it has requested some parts from the downstream.
func frontForTest(t *testing.T, side string, a *canned.Response, text []byte, parts ...canned.Part) *front {
	t.Helper()
	down, err := canned.Serve(true, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down.Close() })
	to := proc.NewClient(down.URL)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, p := range parts {
			if _, err := to.Get(r.Context(), params(a, p, ""), io.Discard); err != nil {
				t.Error(err)
				return
			}
		}
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(text)
			z.Close()
			return
		}
		w.Write(text)
	}))
	t.Cleanup(srv.Close)
	return &front{&area.Side{Name: side, Server: &proc.Server{Client: proc.NewClient(srv.URL)}}, down, nil, nil}
}

func benchForTest(a *canned.Response) *bench {
	return &bench{Bench: area.New(Area, area.Env{Log: io.Discard, Rounds: 1}), response: a}
}

func TestCompare_RejectsUnequalAndEmptyResponses(t *testing.T) {
	a := responseForTest(t)
	whole := a.Whole.Plain
	reencoded := bytes.Replace(bytes.Replace(whole, []byte(`"infos"`), nil, 1), []byte(`"status":"success",`), []byte(`"status": "success", `), 1)
	other := bytes.Replace(whole, []byte(`"]`), []byte(`9"]`), 1)
	relayed := append(append([]byte{}, a.Halves[0].Plain...), a.Halves[1].Plain...)
	empty := []byte(`{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	for _, c := range []struct {
		name, side string
		text       []byte
		want       error
	}{
		{"the same bytes", ferula, whole, nil},
		{"encoded differently", ferula, reencoded, area.ErrUnequal},
		{"encoded differently", thanos, reencoded, nil},
		{"another value", ferula, other, area.ErrUnequal},
		{"another value", thanos, other, area.ErrUnequal},
		{"one byte less", ferula, whole[:len(whole)-1], area.ErrUnequal},
		{"more bytes", ferula, append(append([]byte{}, whole...), ' '), area.ErrUnequal},
		{"a half", thanos, a.Halves[1].Plain, area.ErrUnequal},
		{"no series", thanos, empty, area.ErrUnequal},
		{"both halves", relay, relayed, nil},
		{"only one", relay, a.Halves[0].Plain, area.ErrUnequal},
	} {
		for _, q := range []request{identity, zipped} {
			if c.side == relay && q != identity {
				continue
			}
			f := frontForTest(t, c.side, a, c.text, a.Halves[:]...)
			if err := benchForTest(a).compare(context.Background(), f, a, q); !errors.Is(err, c.want) {
				t.Errorf("%s: %s, %s: got %v, want %v", c.side, c.name, q.what, err, c.want)
			}
		}
	}
	if err := sameResponse("", false, "", empty, empty); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("two empty responses: got %v", err)
	}
}

func TestSend_RejectsAQueryThatWasNotSplitInTwo(t *testing.T) {
	a := responseForTest(t)
	for _, c := range []struct {
		name  string
		q     request
		parts []canned.Part
		want  error
	}{
		{"both halves", identity, []canned.Part{a.Halves[1], a.Halves[0]}, nil},
		{"the whole", identity, []canned.Part{a.Whole}, errParts},
		{"one half", identity, []canned.Part{a.Halves[0]}, errParts},
		{"one half twice", identity, []canned.Part{a.Halves[0], a.Halves[0]}, errParts},
		{"one half too many", identity, []canned.Part{a.Halves[0], a.Halves[1], a.Halves[1]}, errParts},
		{"the whole, too", identity, []canned.Part{a.Whole, a.Halves[0], a.Halves[1]}, errParts},
		{"nothing", identity, nil, errParts},
		{"a hit", cacheHit, nil, nil},
		{"a part of a hit", cacheHit, []canned.Part{a.Halves[1]}, errMiss},
	} {
		f := frontForTest(t, ferula, a, a.Whole.Plain, c.parts...)
		if _, err := benchForTest(a).send(context.Background(), f, a, c.q, io.Discard); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestCheckParts_OfManyQueries(t *testing.T) {
	panels, err := renderPanels(2)
	if err != nil {
		t.Fatal(err)
	}
	halves := func(n int) (all []canned.Served) {
		for range n {
			for _, a := range panels {
				if a.Samples() != smallSeries*points {
					t.Errorf("%s: %d samples", a.Query, a.Samples())
				}
				for _, half := range a.Halves {
					all = append(all, canned.Served{Query: a.Query, StartMS: half.StartMS, EndMS: half.EndMS, Encoding: "gzip"})
				}
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		served []canned.Served
		want   error
	}{
		"two halves each": {halves(3), nil}, "a half too few": {halves(3)[1:], errParts}, "a half too many": {append(halves(3), halves(1)[0]), errParts},
		"shared between requests": {halves(2), errParts},
	} {
		if err := checkParts(panels, []int{3, 3}, slices.Clone(c.served)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestComparePanels_UnequalResponsesAreErrors(t *testing.T) {
	panels, err := renderPanels(1)
	if err != nil {
		t.Fatal(err)
	}
	a := panels[0]
	for name, c := range map[string]struct {
		text []byte
		want error
	}{"the same": {a.Whole.Plain, nil}, "one byte less": {a.Whole.Plain[:len(a.Whole.Plain)-1], area.ErrUnequal}, "of one half": {a.Halves[0].Plain, area.ErrUnequal}} {
		f := frontForTest(t, ferula, a, c.text, a.Halves[:]...)
		if err := benchForTest(a).comparePanels(context.Background(), f, panels, zipped); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestJoiners_WriteTheSameBytes(t *testing.T) {
	b := benchForTest(responseForTest(t))
	if err := b.memory(context.Background()); err != nil {
		t.Fatal(err)
	}
	for what, side := range map[string]string{copyWhat: copying, spliceWhat: ferula, stepsWhat: ferula} {
		if !(b.Median(side, what) > 0) {
			t.Errorf("%s was not read", what)
		}
	}
	wrong := joiner{side: ferula, what: "wrong", join: func(w io.Writer, parts ...io.Reader) error {
		_, err := io.Copy(w, parts[0])
		return err
	}}
	if err := b.compareJoiner(wrong); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("a joiner that drops a half: got %v", err)
	}
}

func TestConclude_UsesMedians(t *testing.T) {
	add := func(b *bench) {
		for _, r := range []struct {
			side, what string
			v          float64
		}{
			{thanos, cpuOf(identity), 6}, {thanos, cpuOf(identity), 5}, {thanos, cpuOf(plainDown), 4},
			{ferula, cpuOf(identity), 0.03}, {ferula, cpuOf(identity), 0.02}, {ferula, cpuOf(identity), 0.015}, {relay, cpuOf(identity), 0.01},
			{thanos, cpuOf(zipped), 5}, {ferula, cpuOf(zipped), 0.5}, {copying, copyWhat, 2},
			{ferula, spliceWhat, 3}, {ferula, stepsWhat, 4}, {ferula, stepsWhat, 5}, {ferula, stepsWhat, 3.5},
			{ferula, cpuOf(cacheHit), 0.01}, {thanos, cpuOf(cacheHit), 2},
			{ferula, area.GrowthOf + growthSmall, 8 << 20}, {ferula, area.GrowthOf + growthBig, 16 << 20},
			{thanos, cpuOf(zippedHit), 5}, {ferula, cpuOf(zippedHit), 0.02},
			{thanos, smallCPU(identity, smallRate), 0.01}, {ferula, smallCPU(identity, smallRate), 0.001},
			{thanos, smallCPU(zipped, smallRate), 0.01}, {ferula, smallCPU(zipped, smallRate), 0.002},
			{thanos, smallCPU(zipped, 2*smallRate), 0.01}, {ferula, smallCPU(zipped, 2*smallRate), 0.009},
		} {
			b.Add(1, r.side, r.what, "", r.v)
		}
	}
	b, longer, empty := benchForTest(responseForTest(t)), benchForTest(responseForTest(t)), benchForTest(responseForTest(t))
	add(b)
	b.conclude()
	for name, want := range map[string]float64{
		"frontend/vs-thanos": 0.005, "frontend/vs-thanos-gzip": 0.1, "frontend/vs-memcpy": 2,
		"frontend/vs-relay": 2, "frontend/cache-hit-vs-thanos": 0.005, "frontend/anon-59mb-mib": 8, "frontend/anon-590mb-mib": 16,
		"frontend/cache-hit-gzip": 0.004, "frontend/small": 0.2,
	} {
		if got := b.Figure(name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	add(longer)
	if err := errors.Join(longer.SameLength(ferula, zippedHit.what, 106), longer.SameLength(thanos, zippedHit.what, 100)); err != nil {
		t.Fatal(err)
	}
	longer.conclude()
	if got := longer.Figure("frontend/cache-hit-gzip"); !math.IsNaN(got) {
		t.Errorf("a response 6 %% longer than the peer's: got %v", got)
	}
	empty.conclude()
	for _, m := range empty.Measured {
		if !math.IsNaN(m.Value) {
			t.Errorf("%s: %v out of no reading", m.Goal, m.Value)
		}
	}
}

const realCutMS = blocks.QuietStartMS + 4*3600_000 // where an interval of 8 h ends, in the middle of the range

func TestRealQuery_PartsCoverTheWholeRange(t *testing.T) {
	q := realQuery
	if realCutMS%(8*3600_000) != 0 || (realCutMS-q.StartMS)%q.StepMS != 0 || realCutMS <= q.StartMS || realCutMS >= q.EndMS() {
		t.Errorf("the cut at %d is not within %d to %d", int64(realCutMS), q.StartMS, q.EndMS())
	}
	if q.EndMS() > realSpec.EndMS() || !strings.Contains(q.Expr, realSpec.Metric) || !strings.Contains(q.Expr, realSpec.Second) {
		t.Errorf("samples end at %d, the query at %d", realSpec.EndMS(), q.EndMS())
	}
	if (cutMS-small.StartMS)%small.StepMS != 0 || cutMS%(24*3600_000) != 0 {
		t.Errorf("a day does not end at %d", cutMS)
	}
}

func TestWithoutAnalysis_RemovesTheEmptyMemberOnly(t *testing.T) {
	const begin = `{"status":"success","data":{"resultType":"matrix","result":[]`
	for text, want := range map[string]string{
		begin + `,"analysis":{}}}`: begin + `}}`, begin + `}}`: begin + `}}`,
		begin + `,"analysis":{"name":"[scan]"}}}`: begin + `,"analysis":{"name":"[scan]"}}}`,
	} {
		if got := withoutAnalysis([]byte(text)); string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
