package httpapi_test

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	prometheusapi "github.com/prometheus/prometheus/web/api/v1"

	"github.com/ferula-io/ferula/promjson"
)

// pairs iterates over Prometheus' labels for an Encoder.
func pairs(ls labels.Labels) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		more := true
		ls.Range(func(l labels.Label) {
			more = more && yield(l.Name, l.Value)
		})
	}
}

// buckets iterates over the buckets of Prometheus' histograms for an Encoder.
func buckets(h *histogram.FloatHistogram) iter.Seq[promjson.Bucket] {
	return func(yield func(promjson.Bucket) bool) {
		for it := h.AllBucketIterator(); it.Next(); {
			b := it.At()
			own := promjson.Bucket{Boundaries: promjson.Boundaries(b.LowerInclusive, b.UpperInclusive), Lower: b.Lower, Upper: b.Upper, Count: b.Count}
			if !yield(own) {
				return
			}
		}
	}
}

// encodeData encodes what Prometheus' API has as the data of a response.
func encodeData(e *promjson.Encoder, data any) {
	switch v := data.(type) {
	case *prometheusapi.QueryData:
		encodeResult(e, v.Result)
	case []string:
		e.BeginStrings()
		for _, s := range v {
			e.AddString(s)
		}
	case []labels.Labels:
		e.BeginLabelSets()
		for _, ls := range v {
			e.LabelSet(pairs(ls))
		}
	case []exemplar.QueryResult:
		e.BeginExemplars()
		for _, r := range v {
			e.ExemplarSeries(pairs(r.SeriesLabels))
			for _, x := range r.Exemplars {
				e.Exemplar(pairs(x.Labels), x.Ts, x.Value)
			}
		}
	case map[string][]metadata.Metadata:
		e.BeginMetadata()
		for family := range promjson.SortedPairs(familyNames(v)) {
			for _, m := range v[family] {
				e.Metadata(family, string(m.Type), m.Unit, m.Help)
			}
		}
	}
}

func familyNames(families map[string][]metadata.Metadata) map[string]string {
	names := map[string]string{}
	for family := range families {
		names[family] = ""
	}
	return names
}

func encodeResult(e *promjson.Encoder, result parser.Value) {
	switch v := result.(type) {
	case promql.Matrix:
		e.BeginMatrix()
		for _, s := range v {
			e.Series(pairs(s.Metric))
			promjson.EncodeValues(e, s.Floats)
			for _, p := range s.Histograms {
				e.Histogram(p.T, p.H.Count, p.H.Sum, buckets(p.H))
			}
		}
	case promql.Vector:
		e.BeginVector()
		for _, s := range v {
			if s.H == nil {
				e.Sample(pairs(s.Metric), s.T, s.F)
			} else {
				e.HistogramSample(pairs(s.Metric), s.T, s.H.Count, s.H.Sum, buckets(s.H))
			}
		}
	case promql.Scalar:
		e.Scalar(v.T, v.V)
	case promql.String:
		e.Text(v.T, v.V)
	}
}

// The public encoder writes what Prometheus' codec writes, for every kind of response.
func TestEncoder_WritesThePrometheusCodecsBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, data := range randomData(r) {
		response := &prometheusapi.Response{Status: "success", Data: data}
		if r.IntN(2) == 0 {
			response.Warnings, response.Infos = []string{randomText(r), "x"}, []string{randomText(r)}
		}
		want, err := prometheusapi.JSONCodec{}.Encode(response)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, 512} {
			var got bytes.Buffer
			e := promjson.NewEncoder(&got, size)
			e.SetSteps(promjson.NewSteps(1700000000000, 15000, 100))
			encodeData(e, data)
			if err := e.Close(response.Warnings, response.Infos); err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("%T: got %s\nwant %s", data, got.Bytes(), want)
			}
		}
	}
	for range 50 {
		kind, text := "bad_data", randomText(r)
		want, err := prometheusapi.JSONCodec{}.Encode(&prometheusapi.Response{Status: "error", ErrorType: kind, Error: text})
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := promjson.NewEncoder(&got, 0).Fail(kind, text); err != nil || got.String() != string(want) {
			t.Errorf("got %s, %v\nwant %s", got.Bytes(), err, want)
		}
	}
}

// randomData returns data of every kind, empty ones too.
func randomData(r *rand.Rand) (all []any) {
	query := func(v parser.Value) {
		all = append(all, &prometheusapi.QueryData{ResultType: v.Type(), Result: v})
	}
	for n := range 40 {
		matrix, vector := promql.Matrix{}, promql.Vector{}
		names, sets := []string{}, []labels.Labels{}
		exemplars, families := []exemplar.QueryResult{}, map[string][]metadata.Metadata{}
		for i := range n {
			ls, at := randomLabelSet(r), int64(1700000000000+r.IntN(100)*7500)
			s := promql.Series{Metric: ls}
			for j := range r.IntN(300) {
				s.Floats = append(s.Floats, promql.FPoint{T: at + int64(j)*7500, F: randomFloat(r)})
			}
			for j := range r.IntN(3) {
				s.Histograms = append(s.Histograms, promql.HPoint{T: at + int64(j), H: tsdbutil.GenerateTestFloatHistogram(int64(j + i))})
			}
			matrix = append(matrix, s)
			sample := promql.Sample{Metric: ls, T: at, F: randomFloat(r)}
			if i%3 == 1 {
				sample.H = tsdbutil.GenerateTestGaugeFloatHistogram(int64(i))
			}
			vector = append(vector, sample)
			names, sets = append(names, randomText(r)), append(sets, ls)
			found := exemplar.QueryResult{SeriesLabels: ls, Exemplars: []exemplar.Exemplar{}}
			for range r.IntN(3) {
				found.Exemplars = append(found.Exemplars, exemplar.Exemplar{Labels: randomLabelSet(r), Value: randomFloat(r), Ts: at})
			}
			exemplars = append(exemplars, found)
			family := randomText(r)
			families[family] = append(families[family], metadata.Metadata{Type: model.MetricTypeCounter, Unit: randomText(r), Help: randomText(r)})
		}
		query(matrix)
		query(vector)
		query(promql.Scalar{T: 1700000000000 + int64(n)*10, V: randomFloat(r)})
		query(promql.String{T: int64(n), V: randomText(r)})
		all = append(all, names, sets, exemplars, families)
	}
	return all
}

func randomLabelSet(r *rand.Rand) labels.Labels {
	values := map[string]string{}
	for range r.IntN(4) {
		values[fmt.Sprintf("l%d", r.IntN(10))] = randomText(r)
	}
	return labels.FromMap(values)
}

func randomText(r *rand.Rand) string {
	texts := []string{"up", "a b", `"`, `\`, "<&>", "\u2028", "\n\t\r\b\f\x01", "é", "\xff", "}]],", ""}
	return texts[r.IntN(len(texts))] + texts[r.IntN(len(texts))]
}

func randomFloat(r *rand.Rand) float64 {
	switch r.IntN(6) {
	case 0:
		return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1)}[r.IntN(5)]
	case 1:
		return float64(r.IntN(1e6))
	case 2:
		return math.Float64frombits(r.Uint64())
	}
	return r.NormFloat64() * 1000
}
