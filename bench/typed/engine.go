package typed

import (
	"io"
	"math"
	"slices"
	"strconv"
	"unsafe"

	jsoniter "github.com/json-iterator/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	v1 "github.com/prometheus/prometheus/web/api/v1"
)

func joinEngine(w io.Writer, parts ...io.Reader) error {
	decoded := make([]promql.Matrix, len(parts))
	for i, part := range parts {
		m, err := Decode(part)
		if err != nil {
			return err
		}
		decoded[i] = m
	}
	body, err := v1.JSONCodec{}.Encode(&v1.Response{
		Status: "success", Data: &v1.QueryData{ResultType: parser.ValueTypeMatrix, Result: mergeEngine(decoded)},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(body)
	return err
}

// mergeEngine appends the samples of series with the same labels.
func mergeEngine(parts []promql.Matrix) promql.Matrix {
	if len(parts) == 1 {
		return parts[0]
	}
	merged := make(promql.Matrix, 0, len(parts[0]))
	at := make(map[string]int, len(parts[0]))
	var key []byte
	for _, part := range parts {
		for _, s := range part {
			key = s.Metric.Bytes(key)
			i, ok := at[string(key)]
			if !ok {
				at[string(key)] = len(merged)
				merged = append(merged, s)
				continue
			}
			merged[i].Floats = append(merged[i].Floats, s.Floats...)
		}
	}
	slices.SortFunc(merged, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return merged
}

// Decode decodes a response into the engine's types. Histograms and unknown fields are skipped.
func Decode(r io.Reader) (promql.Matrix, error) {
	d := decoder{Iterator: jsoniter.Parse(jsoniter.ConfigDefault, r, readBytes)}
	var m promql.Matrix
	var status, resultType string
	for field := d.ReadObject(); field != ""; field = d.ReadObject() {
		switch field {
		case "status":
			status = d.ReadString()
		case "data":
			for field := d.ReadObject(); field != ""; field = d.ReadObject() {
				switch field {
				case "resultType":
					resultType = d.ReadString()
				case "result":
					m = d.matrix()
				default:
					d.Skip()
				}
			}
		default:
			d.Skip()
		}
	}
	if d.Error != nil && d.Error != io.EOF {
		return nil, d.Error
	}
	return m, checkEnvelope(status, resultType)
}

// decoder decodes the types for which json-iterator has no decoders.
type decoder struct {
	*jsoniter.Iterator
	labels labels.ScratchBuilder
	points int // number of points of the last series, which is usually that of the next one, too
}

func (d *decoder) matrix() promql.Matrix {
	d.labels = labels.NewScratchBuilder(8)
	var m promql.Matrix
	for d.ReadArray() {
		var s promql.Series
		for field := d.ReadObject(); field != ""; field = d.ReadObject() {
			switch field {
			case "metric":
				s.Metric = d.metric()
			case "values":
				s.Floats = d.floats()
			default:
				d.Skip()
			}
		}
		m = append(m, s)
	}
	return m
}

func (d *decoder) metric() labels.Labels {
	d.labels.Reset()
	for name := d.ReadObject(); name != ""; name = d.ReadObject() {
		d.labels.Add(name, d.ReadString())
	}
	d.labels.Sort()
	return d.labels.Labels()
}

// floats decodes [[t,"v"],...]. The time is parsed as a float, as in Cortex; the value's text is not copied.
func (d *decoder) floats() []promql.FPoint {
	points := make([]promql.FPoint, 0, d.points)
	for d.ReadArray() {
		if !d.ReadArray() {
			d.ReportError("sample", "no time")
			return nil
		}
		t := d.ReadFloat64()
		if !d.ReadArray() {
			d.ReportError("sample", "no value")
			return nil
		}
		text := d.ReadStringAsSlice()
		v, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(text), len(text)), 64)
		if err != nil {
			d.ReportError("sample", err.Error())
			return nil
		}
		if d.ReadArray() {
			d.ReportError("sample", "more than a time and a value")
			return nil
		}
		points = append(points, promql.FPoint{T: int64(math.Round(t * 1000)), F: v})
	}
	d.points = len(points)
	return points
}
