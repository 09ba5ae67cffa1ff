package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/invariant"
)

var updateColumns = flag.Bool("update", false, "write testdata/columns, which the tests of the page read, too")

const columnsType = "application/vnd.ferula.columns.v1"

// asColumns returns the request of a client that prefers columns, as the page does.
func asColumns(a request) request {
	a.header = http.Header{"Accept": {columnsType + ", application/json"}}
	return a
}

// checkColumns fails unless the columns that body has hold exactly what the JSON want holds.
func checkColumns(t testing.TB, name, body, want string) {
	t.Helper()
	c, err := decodeColumns([]byte(body))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if got, want := normalise(c.asJSON()), normalise(want); got != want {
		t.Errorf("%s: the columns as JSON are\n%s\nwant\n%s", name, clip(got), clip(want))
	}
}

// The same queries as those of the differential test, in both forms.
func TestColumns_HoldWhatJSONHolds(t *testing.T) {
	env := shared(t)
	inColumns, inJSON := 0, 0
	for i, a := range everyQuery() {
		if a.path != "/query_range" || ((testing.Short() || invariant.Enabled) && i%7 != 0) {
			continue
		}
		if i%5 == 0 && a.form.Has("query") {
			a.form.Set("limit", "2")
		}
		pairName := a.pair
		if pairName == "" {
			pairName = "default"
		}
		h := env.pairs[pairName].ours
		want, got := send(h, a.request(t)), send(h, asColumns(a).request(t))
		switch contentType := got.header.Get("Content-Type"); {
		case got.status != want.status:
			t.Errorf("%s: status %d, with JSON %d", a, got.status, want.status)
		case contentType == columnsType && got.status == http.StatusOK:
			inColumns++
			checkColumns(t, a.String(), got.body, want.body)
		case contentType == "application/json":
			inJSON++
			if normalise(got.body) != normalise(want.body) {
				t.Errorf("%s: JSON is %s\nwant %s", a, clip(got.body), clip(want.body))
			}
		default:
			t.Errorf("%s: status %d, type %q", a, got.status, contentType)
		}
		if want.status == http.StatusOK && (!contains(got.header.Values("Vary"), "Accept") || !contains(want.header.Values("Vary"), "Accept")) {
			t.Errorf("%s: Vary is %q and %q", a, got.header.Values("Vary"), want.header.Values("Vary"))
		}
	}
	t.Logf("%d responses in columns, %d in JSON", inColumns, inJSON)
	if inColumns < 100 || inJSON < 20 {
		t.Errorf("%d responses in columns, %d in JSON: the test does not test both", inColumns, inJSON)
	}
}

var oddFloats = []float64{
	math.NaN(), math.Float64frombits(0x7ff4000000000123), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), math.SmallestNonzeroFloat64, math.MaxFloat64, 0.1, -1e21, 1 << 53,
}

// randomMatrix returns series of any length, with gaps in some.
func randomMatrix(r *rand.Rand) (m promql.Matrix, steps int) {
	steps = []int{1, 2, 7, 8, 9, 360, 2000}[r.IntN(7)]
	m = make(promql.Matrix, []int{0, 1, 2, 255, 256, 257, 600}[r.IntN(7)])
	for i := range m {
		name := strings.Repeat("x", []int{0, 1, 5, 300}[r.IntN(4)])
		m[i].Metric = labels.FromStrings("i", strconv.Itoa(i), "odd", specialLabels[r.IntN(len(specialLabels))]+name)
		share := []float64{0, 0.01, 0.5, 0.99, 1, 1, 1}[r.IntN(7)]
		for step := range steps {
			if r.Float64() < share {
				v := oddFloats[r.IntN(len(oddFloats))]
				if r.IntN(3) > 0 {
					v = r.NormFloat64()
				}
				m[i].Floats = append(m[i].Floats, promql.FPoint{T: gridStart + int64(step)*gridStep, F: v})
			}
		}
	}
	return m, steps
}

func TestColumns_RandomMatrices(t *testing.T) {
	p, engine := stubPair(t, nil)
	server, client := serve(t, p.ours)
	for seed := range uint64(60) {
		m, steps := randomMatrix(rand.New(rand.NewPCG(seed, 18)))
		engine.result = &promql.Result{Value: m}
		a := rangeRequest(steps)
		want := send(p.ours, a.request(t)).body
		got := send(p.ours, asColumns(a).request(t))
		if got.header.Get("Content-Type") != columnsType {
			t.Fatalf("seed %d: %s", seed, got)
		}
		name := "seed " + strconv.FormatUint(seed, 10)
		checkColumns(t, name, got.body, want)
		for i, series := range mustDecode(t, got.body).points {
			for j, point := range series {
				if math.Float64bits(point.F) != math.Float64bits(m[i].Floats[j].F) {
					t.Fatalf("%s: bits of value %d of series %d are %x", name, j, i, math.Float64bits(point.F))
				}
			}
		}
		encoding := encodings[seed%3]
		res, body, err := getColumns(t, client, server.URL, a, encoding)
		if err != nil || string(body) != got.body || res.Header.Get("Content-Type") != columnsType {
			t.Errorf("%s, %s: %d bytes, want %d; %v", name, encoding, len(body), len(got.body), err)
		}
		if compressed := res.Header.Get("Content-Encoding"); compressed != encoding && encoding != "identity" && len(got.body) > 512 {
			t.Errorf("%s: sent as %q, want %s", name, compressed, encoding)
		}
	}
}

func getColumns(t testing.TB, client *http.Client, server string, a request, encoding string) (*http.Response, []byte, error) {
	t.Helper()
	return getAs(t, client, server, a, encoding, columnsType)
}

func mustDecode(t testing.TB, body string) decodedColumns {
	t.Helper()
	c, err := decodeColumns([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestColumns_AcceptDecides(t *testing.T) {
	p, _ := stubPair(t, &promql.Result{Value: matrix(2, 3)})
	for accept, want := range map[string]string{
		"": "application/json", "*/*": "application/json", "application/*": "application/json", "application/json": "application/json", "application/vnd.ferula.columns.v2": "application/json",
		columnsType: columnsType, "text/html, " + columnsType: columnsType, columnsType + ", application/json": columnsType, "application/json;q=0.9, " + columnsType: columnsType,
		strings.ToUpper(columnsType) + " ; q=0.1": columnsType, columnsType + ";q=0": "application/json", columnsType + ";q=0.5, application/json": "application/json",
		columnsType + "x": "application/json", strings.Repeat(",", 1<<16) + columnsType: columnsType,
	} {
		a := rangeRequest(3)
		a.header = http.Header{"Accept": {accept}}
		if got := send(p.ours, a.request(t)); got.header.Get("Content-Type") != want || got.status != http.StatusOK {
			t.Errorf("%s: %s", clip(accept), got)
		}
	}
}

// What columns cannot express is JSON, as without the header.
func TestColumns_OtherResultsAreJSON(t *testing.T) {
	p, engine := stubPair(t, nil)
	between, before, twice, late := matrix(1, 3), matrix(1, 3), matrix(1, 3), matrix(1, 3)
	between[0].Floats[1].T++
	before[0].Floats[0].T -= gridStep
	twice[0].Floats[1].T -= gridStep
	late[0].Floats[2].T += gridStep
	native := matrix(2, 3)
	native[1].Histograms = []promql.HPoint{{T: gridStart, H: tsdbutil.GenerateTestFloatHistogram(1)}}
	for name, value := range map[string]promql.Matrix{"between": between, "before": before, "twice": twice, "late": late, "native": native} {
		engine.result = &promql.Result{Value: value}
		want, got := send(p.ours, rangeRequest(3).request(t)), send(p.ours, asColumns(rangeRequest(3)).request(t))
		if got.header.Get("Content-Type") != "application/json" || got.body != want.body || !contains(got.header.Values("Vary"), "Accept") {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	engine.result = &promql.Result{Value: vectorOf(matrix(3, 1))}
	if got := send(p.ours, asColumns(request{path: "/query", form: form("query", "x")}).request(t)); got.header.Get("Content-Type") != "application/json" {
		t.Errorf("an instant query: %s", got)
	}
	for _, a := range []request{ranged("", "demo_gauge{", spans[0]), ranged("", "demo_gauge", [3]string{"5", "1", "1"}), ranged("small", "demo_gauge", spans[0])} {
		h := shared(t).pairs[map[string]string{"": "default", "small": "small"}[a.pair]].ours
		want, got := send(h, a.request(t)), send(h, asColumns(a).request(t))
		if got.status == http.StatusOK || got.String() != want.String() {
			t.Errorf("%s: %s\nwant %s", a, got, want)
		}
	}
}

// The text of a response may be longer than the buffer: it is several sections then.
func TestColumns_StatisticsOfEveryStepAreComplete(t *testing.T) {
	a := ranged("features", "demo_gauge", [3]string{"1700000000.123", "1700005500.123", "0.5"})
	a.form.Set("stats", "all")
	got := send(shared(t).pairs["features"].ours, asColumns(a).request(t))
	c := mustDecode(t, got.body)
	var text struct {
		Data struct {
			ResultType string
			Result     []any
			Stats      struct {
				Samples struct {
					TotalQueryableSamplesPerStep [][2]float64
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(c.text), &text); err != nil {
		t.Fatal(err)
	}
	if n := len(text.Data.Stats.Samples.TotalQueryableSamplesPerStep); n != 11_001 || text.Data.ResultType != "matrix" || text.Data.Result == nil || len(c.text) < 300_000 {
		t.Errorf("%d steps, text of %d bytes: %s", n, len(c.text), clip(c.text))
	}
	if len(c.points) == 0 || c.texts < 2 {
		t.Errorf("%d series, %d sections of text", len(c.points), c.texts)
	}
}

func TestColumns_ATruncatedOrChangedBodyIsNotTakenForWhole(t *testing.T) {
	p, engine := stubPair(t, nil)
	m := matrix(3, 20)
	m[1].Floats = append(m[1].Floats[:5:5], m[1].Floats[9:]...)
	engine.result = &promql.Result{Value: m}
	body := []byte(send(p.ours, asColumns(rangeRequest(20)).request(t)).body)
	if _, err := decodeColumns(body); err != nil {
		t.Fatal(err)
	}
	for n := range body {
		if _, err := decodeColumns(body[:n]); !errors.Is(err, errColumns) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(body), err)
		}
	}
	if _, err := decodeColumns(append(bytes.Clone(body), 0)); !errors.Is(err, errColumns) {
		t.Error("a byte more is not an error")
	}
	for i := range body {
		for _, b := range []byte{0, 1, 0x7f, 0xff, body[i] + 1} {
			changed := bytes.Clone(body)
			changed[i] = b
			_, _ = decodeColumns(changed) // must not panic or allocate what it does not have
		}
	}
}

// goldenMatrices are the results that testdata/columns has in both forms.
func goldenMatrices() map[string]promql.Matrix {
	values := func(name string, from int, list ...float64) promql.Series {
		s := promql.Series{Metric: labels.FromStrings("__name__", "golden", "i", name, "odd", "é\"\\\n<\u2028>\xff")}
		for i, v := range list {
			s.Floats = append(s.Floats, promql.FPoint{T: gridStart + int64(from+i)*gridStep, F: v})
		}
		return s
	}
	gaps := values("gaps", 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	gaps.Floats = append(gaps.Floats[:2:2], append(gaps.Floats[4:5:5], gaps.Floats[7:9]...)...)
	many := matrix(300, 3)
	for i := range many {
		many[i].Floats = many[i].Floats[i%3:]
	}
	return map[string]promql.Matrix{
		"empty": {}, "one": {values("a", 0, 1.5)}, "many": many,
		"odd": {values("odd", 1, oddFloats...), values("none", 0), gaps, values("last", 9, -0.25)},
	}
}

// The files are read by the tests of the page: server and page agree on the format. After a change that older pages cannot read,
// columnsType gets another version.
func TestColumns_BytesAreGolden(t *testing.T) {
	p, engine := stubPair(t, nil)
	for name, m := range goldenMatrices() {
		engine.result = &promql.Result{Value: m}
		for form, a := range map[string]request{"json": rangeRequest(12), "columns": asColumns(rangeRequest(12))} {
			got := send(p.ours, a.request(t)).body
			file := filepath.Join("testdata", "columns", name+"."+form)
			if *updateColumns {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s: %d bytes differ from the %d of the file", file, len(got), len(want))
			}
		}
	}
}

func BenchmarkQueryRange_Forms(b *testing.B) {
	m := make(promql.Matrix, 1000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range m {
		m[i].Metric = labels.FromStrings("__name__", "made_up", "i", strconv.Itoa(i), "job", "shop")
		for step := range int64(360) {
			m[i].Floats = append(m[i].Floats, promql.FPoint{T: gridStart + step*gridStep, F: r.Float64() * 1000})
		}
	}
	p, _ := stubPair(b, &promql.Result{Value: m})
	for name, a := range map[string]request{"json": rangeRequest(360), "columns": asColumns(rangeRequest(360))} {
		for _, encoding := range encodings {
			b.Run(name+"/"+encoding, func(b *testing.B) {
				if a.header == nil {
					a.header = http.Header{}
				}
				a.header.Set("Accept-Encoding", encoding)
				var bytes int64
				for b.Loop() {
					w := newDiscard()
					p.ours.ServeHTTP(w, a.request(b))
					bytes = w.total
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/360_000, "ns/sample")
				b.ReportMetric(float64(bytes)/360_000, "B/sample")
			})
		}
	}
}
