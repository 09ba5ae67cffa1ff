// Package canned is a downstream for query frontends that costs next to nothing: it answers range queries from bytes that
// were rendered before.
//
// In comes a Spec (series, points, where the frontend will cut), out goes an Answer: the bytes of the whole and of each
// part as Prometheus' own codec writes them, plain and compressed; a Server answers with them over loopback, each body in
// one write, as Prometheus does. Whoever asks for anything else gets an error, so that a frontend that cuts differently
// cannot be measured by accident. What is not here: frontends, and what they make of the answers.
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

// Spec says what an answer holds. Values are of 15 digits; each series has seven labels.
type Spec struct {
	Query   string // a metric's name
	Series  int
	Copies  int // how often each series appears, under other clusters; 0 and 1 are the same
	Points  int
	StartMS int64
	StepMS  int64
	CutMS   int64 // the time of the first point of the second part
	Zip     bool  // have compressed bytes ready too
}

// EndMS is the time of the last point.
func (s Spec) EndMS() int64 { return s.StartMS + int64(s.Points-1)*s.StepMS }

// Part is one of the answers that are given: the whole or a half. All bytes are shared immutable.
type Part struct {
	StartMS, EndMS int64 // of its first point and its last
	Plain          []byte
	Gzip           []byte // nil if the Spec did not ask for it
}

// Answer is what a Server knows of one query.
type Answer struct {
	Spec
	Whole  Part
	Halves [2]Part
}

// Parts are all parts, the whole first.
func (a *Answer) Parts() []Part { return append([]Part{a.Whole}, a.Halves[:]...) }

// Samples is how many samples the whole holds.
func (a *Answer) Samples() int { return a.Series * max(1, a.Copies) * a.Points }

// Render makes the answer that s describes.
func Render(s Spec) (*Answer, error) {
	if s.Copies > copiesMax || s.Series < 1 || s.CutMS <= s.StartMS || s.CutMS > s.EndMS() || (s.CutMS-s.StartMS)%s.StepMS != 0 {
		return nil, fmt.Errorf("canned answer that cannot be: %+v", s)
	}
	cut := int((s.CutMS - s.StartMS) / s.StepMS)
	m := s.matrix()
	a := &Answer{Spec: s}
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

// matrix is one copy of the series, sorted as Prometheus sorts them.
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

// render writes the points from (inclusive) to (exclusive) of all copies as one answer, copy by copy: the copies'
// clusters are sorted, and every other label counts only within a cluster.
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
			return nil, fmt.Errorf("the codec writes another envelope: %.80q", body)
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

// zip compresses at the level that Prometheus and Thanos answer with.
func zip(plain []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(plain) // to memory
	_ = w.Close()
	return b.Bytes()
}
