package jsonenc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unsafe"

	"github.com/bytedance/sonic"
	jsoniter "github.com/json-iterator/go"
	apiv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/promjson"
)

const (
	decodeWhat    = "CPU, decoding: "
	decodeRepeats = 3
)

// column holds the samples of one series.
type column struct {
	ts []int64
	vs []float64
}

// columns holds the samples of a response, series by series. The next response reuses its memory.
type columns struct {
	of []column
	n  int
}

func (c *columns) reset() { c.n = 0 }

// next returns the empty column of the next series.
func (c *columns) next() *column {
	if c.n == len(c.of) {
		c.of = append(c.of, column{})
	}
	c.n++
	s := &c.of[c.n-1]
	s.ts, s.vs = s.ts[:0], s.vs[:0]
	return s
}

// decoder decodes a whole response: its samples into columns, and its labels.
type decoder struct {
	side   string
	decode func(body []byte, into *columns) error
}

func decoders() []decoder {
	return []decoder{
		{"jsoniter", decodeJsoniter},
		{"sonic", decodeSonic},
		{"client_golang", decodeClient},
		{ferula, newColumnDecoder()},
	}
}

// decodeJsoniter uses json-iterator with hand-written codecs of labels and samples.
func decodeJsoniter(body []byte, into *columns) error {
	d := jsoniter.ParseBytes(jsoniter.ConfigDefault, body)
	into.reset()
	for field := d.ReadObject(); field != ""; field = d.ReadObject() {
		if field != "data" {
			d.Skip()
			continue
		}
		for field := d.ReadObject(); field != ""; field = d.ReadObject() {
			if field != "result" {
				d.Skip()
				continue
			}
			for d.ReadArray() {
				readSeries(d, into.next())
			}
		}
	}
	if d.Error != nil && !errors.Is(d.Error, io.EOF) {
		return d.Error
	}
	return nil
}

func readSeries(d *jsoniter.Iterator, c *column) {
	labels := make([]promjson.Label, 0, 8)
	for field := d.ReadObject(); field != ""; field = d.ReadObject() {
		switch field {
		case "metric":
			for name := d.ReadObject(); name != ""; name = d.ReadObject() {
				labels = append(labels, promjson.Label{Name: name, Value: d.ReadString()})
			}
		case "values":
			for d.ReadArray() {
				d.ReadArray()
				t := d.ReadFloat64()
				d.ReadArray()
				v, err := strconv.ParseFloat(text(d.ReadStringAsSlice()), 64)
				if err != nil || d.ReadArray() {
					d.ReportError("sample", "not a time and a value")
					return
				}
				c.ts, c.vs = append(c.ts, int64(math.Round(t*1000))), append(c.vs, v)
			}
		default:
			d.Skip()
		}
	}
}

var errSample = errors.New("not a list of samples")

// sampleList is samples that sonic passes to UnmarshalJSON as bytes.
type sampleList struct{ column }

// UnmarshalJSON decodes [[t,"v"],...].
func (p *sampleList) UnmarshalJSON(b []byte) error {
	p.ts, p.vs = make([]int64, 0, len(b)/24+1), make([]float64, 0, len(b)/24+1)
	for len(b) > 2 {
		b = b[1:] // [ or , before a sample, or the list's own [
		if b[0] == '[' {
			b = b[1:]
		}
		comma := bytes.IndexByte(b, ',')
		if comma < 0 || comma+1 >= len(b) || b[comma+1] != '"' {
			return errSample
		}
		t, err := strconv.ParseFloat(text(b[:comma]), 64)
		if err != nil {
			return err
		}
		b = b[comma+2:]
		quote := bytes.IndexByte(b, '"')
		if quote < 0 || quote+1 >= len(b) || b[quote+1] != ']' {
			return errSample
		}
		v, err := strconv.ParseFloat(text(b[:quote]), 64)
		if err != nil {
			return err
		}
		p.ts, p.vs = append(p.ts, int64(math.Round(t*1000))), append(p.vs, v)
		b = b[quote+2:]
	}
	return nil
}

func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// decodeSonic uses sonic with typed structures and a hand-written codec of samples.
func decodeSonic(body []byte, into *columns) error {
	var r struct {
		Status string `json:"status"`
		Data   struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
				Values sampleList        `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := sonic.ConfigFastest.Unmarshal(body, &r); err != nil {
		return err
	}
	into.reset()
	for i := range r.Data.Result {
		*into.next() = r.Data.Result[i].Values.column
	}
	return nil
}

// decodeClient uses the codecs of Prometheus' Go client.
func decodeClient(body []byte, into *columns) error {
	var r struct {
		Status string       `json:"status"`
		Data   clientResult `json:"data"`
	}
	if err := jsoniter.ConfigCompatibleWithStandardLibrary.Unmarshal(body, &r); err != nil {
		return err
	}
	into.reset()
	for _, s := range r.Data.Result {
		c := into.next()
		for _, p := range s.Values {
			c.ts, c.vs = append(c.ts, int64(p.Timestamp)), append(c.vs, float64(p.Value))
		}
	}
	return nil
}

type clientResult struct {
	Type   model.ValueType `json:"resultType"`
	Result model.Matrix    `json:"result"`
}

// The client's package registers its codecs of samples with json-iterator when it is linked.
var _ apiv1.API

// newColumnDecoder uses promjson.
func newColumnDecoder() func(body []byte, into *columns) error {
	s := promjson.NewScanner(nil, promjson.Options{BufferBytes: bufferBytes})
	var labels []promjson.Label
	return func(body []byte, into *columns) error {
		into.reset()
		s.Reset(bytes.NewReader(body))
		for s.Next() {
			var err error
			if labels, err = promjson.DecodeLabels(labels[:0], s.Metric()); err != nil {
				return err
			}
			c := into.next()
			for p := s.NextValues(); p != nil; p = s.NextValues() {
				if c.ts, c.vs, err = promjson.DecodeColumns(c.ts, c.vs, p); err != nil {
					return err
				}
			}
		}
		return s.Err()
	}
}

// decoding compares what the decoders have decoded and measures them in turn.
func decoding(ctx context.Context, b *area.Bench) error {
	var worst float64
	var from []string
	for _, kind := range kinds {
		what := decodeWhat + string(kind)
		if err := decodingOf(ctx, b, kind, what); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		fastest := math.Inf(1)
		for _, d := range decoders() {
			if d.side != ferula {
				fastest = min(fastest, b.Median(d.side, what))
			}
		}
		worst, from = max(worst, area.Over(b.Median(ferula, what), fastest)), append(from, what)
	}
	b.Measure("json/decode", worst, from...)
	return nil
}

func decodingOf(ctx context.Context, b *area.Bench, kind blocks.ValueKind, what string) error {
	m := newMatrix(kind, series)
	var body bytes.Buffer
	if err := encodePeer(&body, m); err != nil {
		return err
	}
	all := decoders()
	into := make([]columns, len(all))
	for i, d := range all {
		if err := d.decode(body.Bytes(), &into[i]); err != nil {
			return fmt.Errorf("%s: %w", d.side, err)
		}
		if into[i].n != len(m) {
			return fmt.Errorf("%s: %w: %d series of %d", d.side, area.ErrUnequal, into[i].n, len(m))
		}
		for j := range m {
			if err := sameColumn(&into[i].of[j], m[j].Floats); err != nil {
				return fmt.Errorf("%s: series %d: %w", d.side, j, err)
			}
		}
	}
	return b.EachRound(what, func(round int) error {
		for i, d := range all {
			decode := func() error { return errors.Join(ctx.Err(), d.decode(body.Bytes(), &into[i])) }
			if err := nanoseconds(b, round, d.side, what, decodeRepeats, decode); err != nil {
				return err
			}
		}
		return nil
	})
}

// sameColumn returns an error unless a column has the samples.
func sameColumn(c *column, want []promql.FPoint) error {
	if len(want) == 0 || len(c.ts) != len(want) || len(c.vs) != len(want) {
		return fmt.Errorf("%w: %d and %d samples of %d", area.ErrUnequal, len(c.ts), len(c.vs), len(want))
	}
	for i, p := range want {
		if c.ts[i] != p.T || math.Float64bits(c.vs[i]) != math.Float64bits(p.F) {
			return fmt.Errorf("%w: sample %d: %d %v, want %v", area.ErrUnequal, i, c.ts[i], c.vs[i], p)
		}
	}
	return nil
}
