package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/ferula-io/ferula/bench/area"
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

// frontForTest returns a front that responds with text after it has requested some parts from the downstream.
func frontForTest(t *testing.T, side string, a *canned.Response, text func(encoding string) []byte, parts ...canned.Part) *front {
	t.Helper()
	down, err := canned.Serve(true, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down.Close() })
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, p := range parts {
			resp, err := http.Get(down.URL + "/api/v1/query_range?" + params(a, p).Encode())
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		}
		encoding := r.Header.Get("Accept-Encoding")
		if encoding == "identity" {
			encoding = ""
		}
		w.Header().Set("Content-Encoding", encoding)
		w.Write(text(encoding))
	}))
	t.Cleanup(srv.Close)
	return &front{side: side, name: side, down: down, server: &proc.Server{Client: proc.NewClient(srv.URL)}}
}

func benchForTest(a *canned.Response) *bench {
	return &bench{env: area.Env{Log: io.Discard}, response: a, lengths: map[string]int64{}, out: &area.Outcome{}}
}

// encode returns a function that compresses text as a server would.
func encode(plain []byte) func(string) []byte {
	return func(encoding string) []byte {
		var b bytes.Buffer
		switch encoding {
		case "gzip":
			z := gzip.NewWriter(&b)
			z.Write(plain)
			z.Close()
		case "zstd":
			z, _ := zstd.NewWriter(&b)
			z.Write(plain)
			z.Close()
		default:
			return plain
		}
		return b.Bytes()
	}
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
		for _, q := range []request{identity, zipped, zstandard} {
			if c.side == relay && q != identity {
				continue
			}
			f := frontForTest(t, c.side, a, encode(c.text), a.Halves[:]...)
			if err := benchForTest(a).compare(context.Background(), f, a, q); !errors.Is(err, c.want) {
				t.Errorf("%s: %s, %s: got %v, want %v", c.side, c.name, q.what, err, c.want)
			}
		}
	}
	if err := sameSamples("", bytes.NewReader(empty), empty); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("two empty responses: got %v", err)
	}
}

func TestSend_RejectsAQueryThatWasNotSplitInTwo(t *testing.T) {
	a := responseForTest(t)
	for _, c := range []struct {
		name  string
		parts []canned.Part
		want  error
	}{
		{"both halves", []canned.Part{a.Halves[1], a.Halves[0]}, nil},
		{"the whole", []canned.Part{a.Whole}, errParts},
		{"one half", []canned.Part{a.Halves[0]}, errParts},
		{"one half twice", []canned.Part{a.Halves[0], a.Halves[0]}, errParts},
		{"one half too many", []canned.Part{a.Halves[0], a.Halves[1], a.Halves[1]}, errParts},
		{"the whole and a half", []canned.Part{a.Whole, a.Halves[1]}, errParts},
		{"nothing", nil, errParts},
	} {
		f := frontForTest(t, ferula, a, encode(a.Whole.Plain), c.parts...)
		if _, err := benchForTest(a).send(context.Background(), f, a, identity, io.Discard); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	for parts, want := range map[*[]canned.Part]error{{}: nil, {a.Halves[1]}: errMiss} {
		f := frontForTest(t, ferula, a, encode(a.Whole.Plain), *parts...)
		if _, err := benchForTest(a).send(context.Background(), f, a, cacheHit, io.Discard); !errors.Is(err, want) {
			t.Errorf("a hit after %d parts: got %v, want %v", len(*parts), err, want)
		}
	}
}

func TestJoiners_WriteTheSameBytes(t *testing.T) {
	b := benchForTest(responseForTest(t))
	b.env.Rounds = 1
	if err := b.memory(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, what := range b.out.Recorder.Kinds() {
		found := false
		for _, side := range []string{typed, copying, ferula} {
			found = found || b.out.Recorder.Median(side, what) > 0
		}
		if !found {
			t.Errorf("%s was not read", what)
		}
	}
	wrong := joiner{what: "wrong", repeats: 1, exact: true, join: func(w io.Writer, parts ...io.Reader) error {
		_, err := io.Copy(w, parts[0])
		return err
	}}
	if err := b.compareJoiner(wrong); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("a joiner that drops a half: got %v", err)
	}
}

func TestConclude_UsesMedians(t *testing.T) {
	b := benchForTest(responseForTest(t))
	for _, r := range []struct {
		side, what string
		v          float64
	}{
		{thanos, cpuOf(identity), 6}, {thanos, cpuOf(identity), 5}, {thanos, cpuOf(plainDown), 4},
		{ferula, cpuOf(identity), 0.03}, {ferula, cpuOf(identity), 0.02}, {ferula, cpuOf(identity), 0.015}, {relay, cpuOf(identity), 0.01},
		{thanos, cpuOf(zipped), 5}, {ferula, cpuOf(zipped), 0.5},
		{typed, joinWhat + "slow", 800}, {typed, joinWhat + "fast", 400}, {copying, copyWhat, 2},
		{ferula, spliceWhat, 3}, {ferula, stepsWhat, 4}, {ferula, stepsWhat, 5}, {ferula, stepsWhat, 3.5},
		{typed, recodeWhat + "slow", 600}, {typed, recodeWhat + "fast", 300}, {ferula, cpuOf(cacheHit), 0.01}, {thanos, cpuOf(cacheHit), 2},
		{ferula, growthSmall, 8 << 20}, {ferula, growthBig, 16 << 20},
		{thanos, cpuOf(zippedHit), 5}, {ferula, cpuOf(zippedHit), 0.02},
		{thanos, smallCPU(identity, smallRate), 0.01}, {ferula, smallCPU(identity, smallRate), 0.001},
		{thanos, smallCPU(zipped, smallRate), 0.01}, {ferula, smallCPU(zipped, smallRate), 0.002},
		{thanos, smallCPU(zipped, 2*smallRate), 0.01}, {ferula, smallCPU(zipped, 2*smallRate), 0.009},
	} {
		b.out.Recorder.Add(1, r.side, r.what, "", r.v)
	}
	b.conclude()
	for name, want := range map[string]float64{
		"frontend/vs-thanos": 0.005, "frontend/vs-thanos-gzip": 0.1, "frontend/vs-memcpy": 2,
		"frontend/vs-relay": 2, "frontend/cache-hit-vs-thanos": 0.005, "frontend/anon-59mb-mib": 8, "frontend/anon-590mb-mib": 16,
		"frontend/cache-hit-gzip": 0.004, "frontend/small": 0.2,
	} {
		if got := b.out.Figure(name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	longer := benchForTest(b.response)
	longer.out.Recorder = b.out.Recorder
	longer.lengths = map[string]int64{ferula + zippedHit.what: 106, thanos + zippedHit.what: 100}
	longer.conclude()
	if got := longer.out.Figure("frontend/cache-hit-gzip"); !math.IsNaN(got) {
		t.Errorf("a response 6 %% longer than the peer's: got %v", got)
	}
	empty := benchForTest(b.response)
	empty.conclude()
	for _, m := range empty.out.Measured {
		if !math.IsNaN(m.Value) {
			t.Errorf("%s: %v out of no reading", m.Goal, m.Value)
		}
	}
}

func TestServerTiming_ParsesDurations(t *testing.T) {
	got := serverTiming([]string{`queue;dur=0.5, fetch;desc="a";dur=12.25`, "miss, bad;dur=x", "splice; dur=3"})
	want := map[string]time.Duration{"queue": 500 * time.Microsecond, "fetch": 12250 * time.Microsecond, "splice": 3 * time.Millisecond}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for name, d := range want {
		if got[name] != d {
			t.Errorf("%s: got %v, want %v", name, got[name], d)
		}
	}
}

func TestRealQuery_PartsCoverTheWholeRange(t *testing.T) {
	if realCutMS%(8*3600_000) != 0 || (realCutMS-realStartMS)%realStepMS != 0 || realCutMS <= realStartMS || realCutMS >= realEndMS {
		t.Errorf("the cut at %d is not within %d to %d", int64(realCutMS), int64(realStartMS), int64(realEndMS))
	}
	if end := realSpec.EndMS(); realEndMS > end || !strings.Contains(realExpr, realSpec.Metric) || !strings.Contains(realExpr, realSpec.Second) {
		t.Errorf("samples end at %d, the query at %d", end, int64(realEndMS))
	}
	if (cutMS-small.StartMS)%small.StepMS != 0 || cutMS%(24*3600_000) != 0 {
		t.Errorf("a day does not end at %d", cutMS)
	}
}

func TestWithoutAnalysis_RemovesTheEmptyMemberOnly(t *testing.T) {
	for text, want := range map[string]string{
		`{"status":"success","data":{"resultType":"matrix","result":[],"analysis":{}}}`:                `{"status":"success","data":{"resultType":"matrix","result":[]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`:                              `{"status":"success","data":{"resultType":"matrix","result":[]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[],"analysis":{"name":"[scan]"}}}`: `{"status":"success","data":{"resultType":"matrix","result":[],"analysis":{"name":"[scan]"}}}`,
	} {
		if got := withoutAnalysis([]byte(text)); string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
