package area

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strconv"
	"time"

	jsoniter "github.com/json-iterator/go"
	"github.com/klauspost/compress/gzip"
	_ "github.com/prometheus/client_golang/api/prometheus/v1" // registers codecs of samples with json-iterator
	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

// Query is a range query.
type Query struct {
	What            string
	Expr            string
	StartMS, StepMS int64
	Points          int // of a series
	Series          int // of the response, 0 if that is not known
	Encoding        string
}

// EightHours is a query of what Floats(8) has. Its steps coincide neither with times of samples nor with ends of blocks.
func EightHours(what, expr string, series int) Query {
	return Query{What: what, Expr: expr, StartMS: blocks.QuietStartMS + 60_000, StepMS: 180_000, Points: 161, Series: series}
}

// Floats are 10,000 series of 15-digit floats, a sample every 15 s for some hours.
func Floats(hours int) blocks.Spec {
	return blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 10_000, Samples: hours * 240, StepMS: 15_000,
		StartMS: blocks.QuietStartMS, Seed: 1,
	}
}

// Request returns the request of a query.
func (q Query) Request() proc.Request {
	return proc.Request{Path: "/api/v1/query_range", Encoding: q.Encoding, Query: url.Values{
		"query": {q.Expr}, "start": {Secs(q.StartMS)}, "end": {Secs(q.EndMS())}, "step": {Secs(q.StepMS)},
	}}
}

// EndMS returns the time of the last step.
func (q Query) EndMS() int64 { return q.StartMS + int64(q.Points-1)*q.StepMS }

// Secs returns a time in milliseconds as the API of Prometheus takes it.
func Secs(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }

// Result returns the result of a query.
func (q Query) Result(ctx context.Context, from *proc.Server) (model.Matrix, error) {
	body, _, err := from.Fetch(ctx, q.Request())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.What, err)
	}
	return DecodeMatrix(body)
}

// Check returns an error unless a response has the series and points of the query.
func (q Query) Check(body []byte) error {
	m, err := DecodeMatrix(body)
	if err != nil {
		return fmt.Errorf("%s: %w", q.What, err)
	}
	return q.Complete(m)
}

// Complete returns an error unless a result has the series and points of the query.
func (q Query) Complete(m model.Matrix) error {
	if len(m) == 0 || q.Series > 0 && len(m) != q.Series {
		return fmt.Errorf("%s: %w: %d series, want %d", q.What, ErrEmpty, len(m), q.Series)
	}
	for _, s := range m {
		if n := len(s.Values) + len(s.Histograms); q.Series > 0 && n != q.Points || n == 0 {
			return fmt.Errorf("%s: %w: %s has %d points, want %d", q.What, ErrEmpty, s.Metric, n, q.Points)
		}
	}
	return nil
}

// DecodeMatrix decodes the response of a range query, with the series sorted by labels.
func DecodeMatrix(body []byte) (m model.Matrix, err error) {
	err = decode(body, "matrix", &m)
	return sorted(m), err
}

// sorted sorts series by the text of their labels, which is made once for each.
func sorted(m model.Matrix) model.Matrix {
	type keyed struct {
		key string
		s   *model.SampleStream
	}
	all := make([]keyed, len(m))
	for i, s := range m {
		all[i] = keyed{s.Metric.String(), s}
	}
	slices.SortFunc(all, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	for i := range all {
		m[i] = all[i].s
	}
	return m
}

func decode(body []byte, resultType string, result any) error {
	var r struct {
		Status   string   `json:"status"`
		Warnings []string `json:"warnings"`
		Data     struct {
			Type   string              `json:"resultType"`
			Result jsoniter.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := jsoniter.ConfigCompatibleWithStandardLibrary.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("%w: %.80q", err, body)
	}
	if r.Status != "success" || r.Data.Type != resultType {
		return fmt.Errorf("%w: a response of status %q and type %q", ErrEmpty, r.Status, r.Data.Type)
	}
	if len(r.Warnings) > 0 { // it may be a part of the response
		return fmt.Errorf("%w: warnings: %q", ErrUnequal, r.Warnings)
	}
	return jsoniter.ConfigCompatibleWithStandardLibrary.Unmarshal(r.Data.Result, result)
}

// Instant returns the result of an instant query.
func Instant(ctx context.Context, from *proc.Server, expr string, at time.Time) (v model.Vector, err error) {
	body, _, err := from.Fetch(ctx, proc.Request{Path: "/api/v1/query", Query: url.Values{
		"query": {expr}, "time": {Secs(at.UnixMilli())},
	}})
	if err == nil {
		v, err = DecodeVector(body)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	return v, nil
}

// DecodeVector decodes the response of an instant query.
func DecodeVector(body []byte) (v model.Vector, err error) {
	err = decode(body, "vector", &v)
	return v, err
}

// SameMatrix returns an error unless two results have the same series, with the same times and values. tolerance is a share
// of the wanted value: engines of other releases add the values of a sum in another order. It does not hold for histograms.
func SameMatrix(what string, got, want model.Matrix, tolerance float64) error {
	if len(want) == 0 {
		return fmt.Errorf("%s: %w", what, ErrEmpty)
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s: %w: %d series, want %d", what, ErrUnequal, len(got), len(want))
	}
	for i, s := range want {
		same := slices.EqualFunc(got[i].Histograms, s.Histograms, func(g, w model.SampleHistogramPair) bool {
			return g.Timestamp == w.Timestamp && g.Histogram.Equal(w.Histogram)
		})
		if !same {
			return fmt.Errorf("%s: %w: histograms of %s", what, ErrUnequal, s.Metric)
		}
		if !got[i].Metric.Equal(s.Metric) || len(got[i].Values) != len(s.Values) {
			return fmt.Errorf("%s: %w: %s with %d points, want %s with %d",
				what, ErrUnequal, got[i].Metric, len(got[i].Values), s.Metric, len(s.Values))
		}
		for j, p := range s.Values {
			if g := got[i].Values[j]; g.Timestamp != p.Timestamp || !Close(float64(g.Value), float64(p.Value), tolerance) {
				return fmt.Errorf("%s: %w: %s: %v, want %v", what, ErrUnequal, s.Metric, g, p)
			}
		}
	}
	return nil
}

// Close reports whether a value is the wanted one, or differs from it by at most a share of it, or of 1 if that is greater.
func Close(got, want, tolerance float64) bool {
	if tolerance == 0 || math.IsNaN(want) {
		return math.Float64bits(got) == math.Float64bits(want) || math.IsNaN(got) && math.IsNaN(want)
	}
	return math.Abs(got-want) <= tolerance*math.Max(1, math.Abs(want))
}

// Decompressed returns the plain bytes of a response.
func Decompressed(encoding string, body []byte) ([]byte, error) {
	if encoding == "" {
		return body, nil
	}
	var plain bytes.Buffer
	err := Decompress(encoding, &plain, bytes.NewReader(body))
	return plain.Bytes(), err
}

// Decompress copies the plain bytes of a response.
func Decompress(encoding string, w io.Writer, r io.Reader) error {
	if encoding != "gzip" {
		return fmt.Errorf("%w: encoding %q", ErrUnequal, encoding)
	}
	z, err := gzip.NewReader(r)
	if err == nil {
		_, err = io.Copy(w, z)
	}
	return err
}
