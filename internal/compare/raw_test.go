package compare_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/compare"
	"github.com/ferula-io/ferula/internal/series"
)

// source returns the same series for every selector.
type source struct {
	list  []storage.Series
	err   error
	warn  string
	asked []string
}

func (s *source) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	return &sourceQuerier{s, mint, maxt}, nil
}

type sourceQuerier struct {
	*source
	mint, maxt int64
}

func (q *sourceQuerier) Select(_ context.Context, _ series.SelectOptions, ms ...*labels.Matcher) series.Set {
	var texts []string
	for _, m := range ms {
		texts = append(texts, m.String())
	}
	q.asked = append(q.asked, time.UnixMilli(q.mint).Sub(end).String()+" "+time.UnixMilli(q.maxt).Sub(end).String()+" "+strings.Join(texts, ","))
	return series.FromChunkSeriesSet(storage.NewSeriesSetToChunkSet(&listed{list: q.list, err: q.err, warn: q.warn}))
}

func (*sourceQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (*sourceQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (*sourceQuerier) Close() error                      { return nil }

// listed is a set of series that may end with an error.
type listed struct {
	list []storage.Series
	at   int
	err  error
	warn string
}

func (l *listed) Next() bool         { l.at++; return l.at <= len(l.list) }
func (l *listed) At() storage.Series { return l.list[l.at-1] }
func (l *listed) Err() error         { return l.err }
func (l *listed) Warnings() annotations.Annotations {
	if l.warn == "" {
		return nil
	}
	return annotations.New().Add(errors.New(l.warn))
}

type point struct {
	t int64
	v float64
	h *histogram.FloatHistogram
}

func (p point) ST() int64                     { return 0 }
func (p point) T() int64                      { return p.t }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return p.h }
func (p point) Type() chunkenc.ValueType {
	if p.h != nil {
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}
func (p point) Copy() chunks.Sample { return p }

func rawSeries(name string, points ...chunks.Sample) storage.Series {
	return storage.NewListSeries(labels.FromStrings("__name__", "x", "s", name), points)
}

func rawRun(t *testing.T, left, right *source, text string, bytesMax int64) *compare.Report {
	t.Helper()
	queries, _ := load(t, text)
	report, err := compare.Run(t.Context(), compare.Options{Left: compare.Side{Raw: left, Name: "l"}, Right: compare.Side{Raw: right, Name: "r"},
		Queries: queries, Mode: compare.Auto, End: end, Range: time.Hour, Step: 30 * time.Second, BytesMax: bytesMax, QueriesMax: 100, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestCompareRaw_SamplesOfSelectorsAreCompared(t *testing.T) {
	at := end.UnixMilli()
	h, other := tsdbutil.GenerateTestFloatHistogram(1), tsdbutil.GenerateTestFloatHistogram(1)
	other.PositiveBuckets[0]++
	const schema = " schema:1 zero_threshold:0.001"
	left := &source{list: []storage.Series{
		rawSeries("a", point{t: at - 2, v: 1}, point{t: at - 1, v: 2}, point{t: at, v: math.NaN()}, point{t: at + 1, v: 7}),
		rawSeries("b", point{t: at, h: h}), rawSeries("d", point{t: at, v: 1})}}
	right := &source{list: []storage.Series{
		rawSeries("a", point{t: at - 2, v: 1}, point{t: at, v: 3}), rawSeries("b", point{t: at, h: other}), rawSeries("c", point{t: at, v: 1}),
		rawSeries("d", point{t: at, v: 1})}}
	report := rawRun(t, left, right, `rate(x{s!=""}[10m] offset 1m) + x{s!=""}`, 1<<20)
	check(t, left.asked, `-10m59.999s 0s s!="",__name__="x"`)
	var got []string
	for _, d := range report.Results[0].Differences {
		got = append(got, string(d.Kind)+" "+d.Series+" "+d.Left+" | "+d.Right)
	}
	check(t, got, `missing sample {__name__="x", s="a"} 2 | `, `value {__name__="x", s="a"} NaN | 3`,
		`histogram {__name__="x", s="b"} `+h.String()+schema+" | "+other.String()+schema, `missing series {__name__="x", s="c"}  | has it`)
	if report.Results[0].Left.Bytes == 0 || report.Different != 1 {
		t.Errorf("%+v", report.Results[0])
	}
	if report = rawRun(t, left, left, "x", 1<<20); report.SameBytes != 1 {
		t.Errorf("%+v", report.Results)
	}
}

func TestCompareRaw_FailuresAndLongResponsesAreNotCompared(t *testing.T) {
	good := &source{list: []storage.Series{rawSeries("a", point{t: end.UnixMilli(), v: 1})}}
	bad := &source{err: errors.New("broken")}
	if r := rawRun(t, good, bad, "x", 1<<20).Results[0]; r.NotCompared != "r: broken" || len(r.Differences) > 0 {
		t.Errorf("%+v", r)
	}
	if r := rawRun(t, good, good, "x", 10).Results[0]; !strings.Contains(r.NotCompared, "longer than the limit of 10 bytes") {
		t.Errorf("%+v", r)
	}
	report := rawRun(t, good, good, "x\nx{\n", 1<<20)
	if len(report.Skipped) != 1 || !strings.Contains(report.Skipped[0].Why, "parse error") {
		t.Errorf("%+v", report.Skipped)
	}
}

func TestCompareRaw_WhatTheTextOfAHistogramHidesIsADifference(t *testing.T) {
	at := end.UnixMilli()
	plain := &histogram.FloatHistogram{Sum: 1}
	for name, pair := range map[string][2]*histogram.FloatHistogram{
		"stale":          {{Sum: math.Float64frombits(value.StaleNaN)}, {Sum: math.NaN()}},
		"schema":         {plain, {Sum: 1, Schema: 1}},
		"zero threshold": {plain, {Sum: 1, ZeroThreshold: 1}},
	} {
		report := rawRun(t, &source{list: []storage.Series{rawSeries("a", point{t: at, h: pair[0]})}},
			&source{list: []storage.Series{rawSeries("a", point{t: at, h: pair[1]})}}, "x", 1<<20)
		if report.Different != 1 {
			t.Errorf("%s: %+v", name, report.Results)
		}
	}
}

func TestCompareRaw_AWarningIsADifference(t *testing.T) {
	list := []storage.Series{rawSeries("a", point{t: end.UnixMilli(), v: 1})}
	report := rawRun(t, &source{list: list}, &source{list: list, warn: "a store is missing"}, "x", 1<<20)
	if d := report.Results[0].Differences; len(d) != 1 || d[0].Kind != compare.KindWarning || d[0].Right != "a store is missing" {
		t.Errorf("%+v", report.Results)
	}
}
