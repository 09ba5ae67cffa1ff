// Package jsonenc measures the cost of encoding a matrix as JSON, in the bench's own process: goals json/*.
//
// Prometheus' API codec and ferula's promjson encode the same promql.Matrix in turn. The bytes are compared first.
// promjson is used as a server uses it: it appends to one buffer that is written out whenever it is full.
package jsonenc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"unsafe"

	jsoniter "github.com/json-iterator/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	v1 "github.com/prometheus/prometheus/web/api/v1"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/promjson"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "json", About: "promjson and Prometheus' JSONCodec, and decoders of JSON, in one process",
	Sides: []string{codec, "jsoniter", "sonic", "client_golang", ferula}, Run: run,
}

const (
	series  = 11_000
	points  = 161
	samples = series * points
	startMS = blocks.QuietStartMS
	stepMS  = 180_000

	repeats     = 8
	bufferBytes = 64 << 10
	heapBytes   = 256 << 20
	seed        = 1

	codec  = "JSONCodec"
	ferula = "ferula"

	nanosecondsASample = "ns/sample"

	cpu         = "CPU: "
	allocations = "allocations: "
)

// encoder writes a matrix as a whole response.
type encoder struct {
	side   string
	times  int // how often it encodes for a reading
	encode func(w io.Writer, m promql.Matrix) error
}

// encoders returns the sides; the first one's bytes are those of the others.
func encoders() []encoder {
	return []encoder{{codec, repeats, encodePeer}, {ferula, repeats, newStreamer().encode}, {"jsoniter", 1, encodePlain}}
}

// kinds of values that are measured.
var kinds = []blocks.ValueKind{blocks.Floats15, blocks.Integers, blocks.Decimals2}

func run(ctx context.Context, b *area.Bench) error {
	b.Versions = area.Modules("github.com/prometheus/prometheus", "github.com/json-iterator/go", "github.com/bytedance/sonic", "github.com/prometheus/client_golang")
	sides := encoders()
	// A server's heap holds more than one response. On a heap without other data the garbage collector runs for every
	// response of JSONCodec and empties its pool of buffers each time, which favours ferula by a fifth. This case is
	// reported, but has no goal.
	heap := make([]byte, heapBytes)
	for _, kind := range kinds {
		if err := measure(ctx, b, kind, string(kind), sides); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	if err := decoding(ctx, b); err != nil {
		return err
	}
	runtime.KeepAlive(heap)
	for _, kind := range kinds[:2] {
		if err := measure(ctx, b, kind, string(kind)+", small heap", sides[:2]); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	for goal, kind := range map[string]blocks.ValueKind{"floats": blocks.Floats15, "ints": blocks.Integers, "decimals": blocks.Decimals2} {
		b.Ratio("json/encode-"+goal, cpu+string(kind))
	}
	b.Own("json/encode-allocs", samples, allocations+string(blocks.Floats15), allocations+string(blocks.Integers))
	b.Note(
		fmt.Sprintf("%d series x %d samples, 8 labels, the whole response with its envelope; CPU includes the garbage collection that follows.", series, points),
		"floats15: 15 significant digits over nine orders of magnitude; integers: 0 to 999; decimals2: a walk with two decimals.",
		fmt.Sprintf("The heap holds %d MiB in addition, as a server's heap holds other data; small heap: only the matrix, so that the garbage collector runs for every response of JSONCodec.", heapBytes>>20),
		fmt.Sprintf("JSONCodec returns one slice, as it does in Prometheus; promjson appends to a buffer of %d KiB that is written out when it is full. Allocations are those of one encoding of the whole matrix, once warm.", bufferBytes>>10),
		"Encoding with jsoniter: no codec is registered for the types of the matrix, so that it calls MarshalJSON of each sample, as Thanos' frontend does.",
		"Decoding: the whole response from memory into one slice of times and one of values a series, labels included. jsoniter has hand-written codecs of samples and labels; sonic has structures and a hand-written codec of samples; client_golang is its model.Matrix with the codecs that it registers. json/decode is over the fastest of the three, worst of the kinds of values.",
	)
	return nil
}

// measure compares the outputs of the encoders for one kind of values. It then measures them in turn, under the name what.
func measure(ctx context.Context, b *area.Bench, kind blocks.ValueKind, what string, encoders []encoder) error {
	m := newMatrix(kind, series)
	if err := compare(m, encoders); err != nil {
		return err
	}
	return b.EachRound(what, func(round int) error {
		for _, e := range encoders {
			var failed error
			encode := func() error { failed = errors.Join(ctx.Err(), e.encode(io.Discard, m)); return failed }
			if err := nanoseconds(b, round, e.side, cpu+what, e.times, encode); err != nil {
				return err
			}
			allocs := testing.AllocsPerRun(1, func() { _ = encode() })
			b.Add(round, e.side, allocations+what, area.Count, allocs)
			if failed != nil {
				return failed
			}
		}
		return nil
	})
}

// nanoseconds records the CPU time of a sample, of n calls.
func nanoseconds(b *area.Bench, round int, side, what string, n int, call func() error) error {
	used, err := area.CPUOf(n, call)
	b.Add(round, side, what, nanosecondsASample, float64(used.Nanoseconds())/samples)
	return err
}

func compare(m promql.Matrix, encoders []encoder) error {
	responses := make([]bytes.Buffer, len(encoders))
	for i, e := range encoders {
		if err := e.encode(&responses[i], m); err != nil {
			return fmt.Errorf("%s: %w", e.side, err)
		}
	}
	if n := bytes.Count(responses[0].Bytes(), []byte(`{"metric":{`)); n == 0 || n != len(m) {
		return fmt.Errorf("%w: %d series of %d", area.ErrEmpty, n, len(m))
	}
	for i := range responses[1:] {
		if err := area.SameBytes("matrix", responses[0].Bytes(), responses[i+1].Bytes()); err != nil {
			return fmt.Errorf("%s: %w", encoders[i+1].side, err)
		}
	}
	return nil
}

func newMatrix(kind blocks.ValueKind, series int) promql.Matrix {
	spec := blocks.Spec{Metric: "bench_metric", Values: kind, Series: series}
	m := make(promql.Matrix, series)
	for i := range m {
		m[i] = promql.Series{Metric: spec.Labels(i), Floats: make([]promql.FPoint, points)}
		for j, v := range blocks.Sequence(kind, seed, i, points) {
			m[i].Floats[j] = promql.FPoint{T: startMS + int64(j)*stepMS, F: v}
		}
	}
	return m
}

// encodePeer encodes a matrix as Prometheus' query_range does.
func encodePeer(w io.Writer, m promql.Matrix) error {
	body, err := v1.JSONCodec{}.Encode(&v1.Response{
		Status: "success", Data: &v1.QueryData{ResultType: parser.ValueTypeMatrix, Result: m},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}

// encodePlain encodes a matrix with jsoniter, for whose types no codec is registered.
func encodePlain(w io.Writer, m promql.Matrix) error {
	type plainSeries struct {
		Metric labels.Labels `json:"metric"`
		Values []plainPoint  `json:"values"`
	}
	result := make([]plainSeries, len(m))
	for i, s := range m {
		result[i] = plainSeries{s.Metric, unsafe.Slice((*plainPoint)(unsafe.Pointer(unsafe.SliceData(s.Floats))), len(s.Floats))}
	}
	type data struct {
		Type   parser.ValueType `json:"resultType"`
		Result []plainSeries    `json:"result"`
	}
	body, err := jsoniter.ConfigCompatibleWithStandardLibrary.Marshal(struct {
		Status string `json:"status"`
		Data   data   `json:"data"`
	}{"success", data{parser.ValueTypeMatrix, result}})
	if err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}

// plainPoint is a point that encodes itself.
type plainPoint promql.FPoint

// MarshalJSON implements json.Marshaler.
func (p plainPoint) MarshalJSON() ([]byte, error) {
	return model.SamplePair{Timestamp: model.Time(p.T), Value: model.SampleValue(p.F)}.MarshalJSON()
}

// streamer encodes with promjson and reuses its buffer for the next response.
type streamer struct {
	grid   *promjson.Steps
	buffer []byte
}

func newStreamer() *streamer {
	return &streamer{grid: promjson.NewSteps(startMS, stepMS, points), buffer: make([]byte, 0, bufferBytes)}
}

func (s *streamer) encode(w io.Writer, m promql.Matrix) error {
	dst := append(s.buffer[:0], `{"status":"success","data":{"resultType":"matrix","result":[`...)
	for i := range m {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"metric":`...)
		dst = appendLabels(dst, m[i].Metric)
		dst = append(dst, `,"values":[`...)
		dst = promjson.AppendPoints(dst, s.grid, m[i].Floats)
		dst = append(dst, ']', '}')
		if len(dst) > bufferBytes*3/4 {
			if _, err := w.Write(dst); err != nil {
				return err
			}
			dst = dst[:0]
		}
	}
	dst = append(dst, `]}}`...)
	_, err := w.Write(dst)
	s.buffer = dst // it may have grown; the next response reuses it
	return err
}

func appendLabels(dst []byte, lset labels.Labels) []byte {
	dst = append(dst, '{')
	first := true
	lset.Range(func(l labels.Label) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = promjson.AppendLabelString(dst, l.Name)
		dst = append(dst, ':')
		dst = promjson.AppendLabelString(dst, l.Value)
	})
	return append(dst, '}')
}
