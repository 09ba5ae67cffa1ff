// Package canned is a downstream for query frontends that costs almost nothing: it serves range queries from bytes that
// were rendered in advance.
//
// Render takes a Spec (series, points, the cut of the frontend) and returns a Response: the bytes of the whole result and of
// each part as Prometheus' own codec encodes them, plain and compressed. A Server serves them on loopback, each body in one
// write, as Prometheus does. Every other request is an error, so that a frontend that splits the query at another time is not
// measured by accident.
package canned

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	v1 "github.com/prometheus/prometheus/web/api/v1"

	"github.com/ferula-io/ferula/bench/blocks"
)

const (
	prefix = `{"status":"success","data":{"resultType":"matrix","result":[`
	suffix = `]}}`

	copiesMax = 10
	seed      = 1
)

// Spec describes a response. Values have 15 digits; each series has seven labels.
type Spec struct {
	Query   string // a metric's name
	Series  int
	Copies  int // copies of each series, with other cluster labels; 0 means 1
	Points  int
	StartMS int64
	StepMS  int64
	CutMS   int64 // timestamp of the first point of the second part
	Zip     bool  // also render compressed bytes
}

// EndMS returns the timestamp of the last point.
func (s Spec) EndMS() int64 { return s.StartMS + int64(s.Points-1)*s.StepMS }

// Part is a body that is served: the whole result or a half. All bytes are shared and immutable.
type Part struct {
	StartMS, EndMS int64 // timestamps of its first and last point
	Plain          []byte
	Gzip           []byte // nil without Spec.Zip
}

// Response holds all bodies of one query.
type Response struct {
	Spec
	Whole  Part
	Halves [2]Part
}

// Parts returns all parts, the whole result first.
func (a *Response) Parts() []Part { return append([]Part{a.Whole}, a.Halves[:]...) }

// Samples returns the number of samples of the whole result.
func (a *Response) Samples() int { return a.Series * max(1, a.Copies) * a.Points }

// Render renders the response that s describes.
func Render(s Spec) (*Response, error) {
	if s.Copies > copiesMax || s.Series < 1 || s.CutMS <= s.StartMS || s.CutMS > s.EndMS() || (s.CutMS-s.StartMS)%s.StepMS != 0 {
		return nil, fmt.Errorf("invalid canned response: %+v", s)
	}
	cut := int((s.CutMS - s.StartMS) / s.StepMS)
	m := s.matrix()
	a := &Response{Spec: s}
	for _, p := range []struct {
		part     *Part
		from, to int
	}{{&a.Whole, 0, s.Points}, {&a.Halves[0], 0, cut}, {&a.Halves[1], cut, s.Points}} {
		plain, err := s.render(m, p.from, p.to)
		if err != nil {
			return nil, err
		}
		*p.part = Part{StartMS: s.StartMS + int64(p.from)*s.StepMS, EndMS: s.StartMS + int64(p.to-1)*s.StepMS, Plain: plain}
		if s.Zip {
			p.part.Gzip = zip(plain)
		}
	}
	return a, nil
}

// matrix returns one copy of the series, in Prometheus' order.
func (s Spec) matrix() promql.Matrix {
	spec := blocks.Spec{Metric: s.Query}
	m := make(promql.Matrix, s.Series)
	for i := range m {
		m[i] = promql.Series{Metric: labels.NewBuilder(spec.Labels(i)).Del("node").Labels(), Floats: make([]promql.FPoint, s.Points)}
		for j, v := range blocks.Sequence(blocks.Floats15, seed, i, s.Points) {
			m[i].Floats[j] = promql.FPoint{T: s.StartMS + int64(j)*s.StepMS, F: v}
		}
	}
	slices.SortFunc(m, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return m
}

// render encodes the points with indexes from (inclusive) to to (exclusive) of all copies as one result, copy by copy. This
// is Prometheus' order of series, because cluster is the first label that differs between copies.
func (s Spec) render(m promql.Matrix, from, to int) ([]byte, error) {
	out := []byte(prefix)
	for c := range max(1, s.Copies) {
		part := make(promql.Matrix, len(m))
		for i := range m {
			lset := labels.NewBuilder(m[i].Metric).Set("cluster", "eu-west-"+strconv.Itoa(c)).Labels()
			part[i] = promql.Series{Metric: lset, Floats: m[i].Floats[from:to]}
		}
		body, err := v1.JSONCodec{}.Encode(&v1.Response{Status: "success", Data: &v1.QueryData{ResultType: parser.ValueTypeMatrix, Result: part}})
		if err != nil {
			return nil, err
		}
		body, begins := bytes.CutPrefix(body, []byte(prefix))
		body, ends := bytes.CutSuffix(body, []byte(suffix))
		if !begins || !ends {
			return nil, fmt.Errorf("the codec encodes another envelope: %.80q", body)
		}
		if c > 0 {
			out = append(out, ',')
		} else {
			out = slices.Grow(out, (len(body)+1)*max(1, s.Copies)+len(suffix))
		}
		out = append(out, body...)
	}
	return append(out, suffix...), nil
}

// zip compresses at the level that Prometheus and Thanos use.
func zip(plain []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(plain) // cannot fail: it writes to memory
	_ = w.Close()
	return b.Bytes()
}
