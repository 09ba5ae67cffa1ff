package remotewrite

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"unsafe"

	"github.com/gogo/protobuf/proto"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

const unlimited = 1 << 40

// decodedBytes computes by reflection the bytes of a decoded message: of its slices and,
// in 2.0, of its label sets.
func decodedBytes(v reflect.Value) int64 {
	total := int64(0)
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "XXX_unrecognized" {
				total += decodedBytes(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			total += int64(v.Type().Elem().Size()) + decodedBytes(v.Index(i))
		}
	default:
	}
	return total
}

func v1Request() *prompb.WriteRequest {
	h := prompb.Histogram{
		Count: &prompb.Histogram_CountInt{CountInt: 3}, ZeroCount: &prompb.Histogram_ZeroCountInt{ZeroCountInt: 1},
		PositiveSpans: []prompb.BucketSpan{{Offset: 1, Length: 2}}, PositiveDeltas: []int64{1, -300, 1 << 40},
		NegativeSpans: []prompb.BucketSpan{{}}, NegativeDeltas: []int64{5}, PositiveCounts: []float64{1, 2}, NegativeCounts: []float64{3}, CustomValues: []float64{4},
	}
	return &prompb.WriteRequest{
		Timeseries: []prompb.TimeSeries{
			{
				Labels:  []prompb.Label{{Name: "__name__", Value: "a"}, {Name: "b", Value: "c"}},
				Samples: []prompb.Sample{{Value: 1, Timestamp: 2}, {}}, Histograms: []prompb.Histogram{h, {}},
				Exemplars: []prompb.Exemplar{{Labels: []prompb.Label{{Name: "x", Value: "y"}}, Value: 1}},
			},
			{},
		},
		Metadata: []prompb.MetricMetadata{{MetricFamilyName: "a", Help: "h"}},
	}
}

func v2Request() *writev2.Request {
	h := writev2.Histogram{
		PositiveSpans: []writev2.BucketSpan{{Offset: 1, Length: 2}}, PositiveDeltas: []int64{1, -300, 1 << 40}, CustomValues: []float64{4},
	}
	return &writev2.Request{
		Symbols: []string{"", "__name__", "apples", "x"},
		Timeseries: []writev2.TimeSeries{{
			LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Value: 1}}, Histograms: []writev2.Histogram{h},
			Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{3, 3}}},
		}, {}},
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestCost_EstimatesAreUpperBounds(t *testing.T) {
	for _, c := range []struct {
		estimate int64
		sizes    []uintptr
	}{
		{labelBytes, []uintptr{unsafe.Sizeof(prompb.Label{})}},
		{sampleBytes, []uintptr{unsafe.Sizeof(prompb.Sample{}), unsafe.Sizeof(writev2.Sample{})}},
		{spanBytes, []uintptr{unsafe.Sizeof(prompb.BucketSpan{}), unsafe.Sizeof(writev2.BucketSpan{})}},
		{exemplarBytes, []uintptr{unsafe.Sizeof(prompb.Exemplar{}), unsafe.Sizeof(writev2.Exemplar{})}},
		{histogramBytes, []uintptr{unsafe.Sizeof(prompb.Histogram{}), unsafe.Sizeof(writev2.Histogram{})}},
		{metadataBytes, []uintptr{unsafe.Sizeof(prompb.MetricMetadata{})}},
		{seriesBytes, []uintptr{unsafe.Sizeof(prompb.TimeSeries{}), unsafe.Sizeof(writev2.TimeSeries{})}},
	} {
		biggest := int64(0)
		for _, size := range c.sizes {
			biggest = max(biggest, int64(size))
		}
		if biggest > c.estimate || biggest+64 < c.estimate {
			t.Errorf("estimate %d, structs of %v", c.estimate, c.sizes)
		}
	}
}

func TestCost_EqualsDecodedBytes(t *testing.T) {
	m := v1Request()
	held := decodedBytes(reflect.ValueOf(*m))
	got, err := CostV1(encode(t, m), unlimited)
	if err != nil || got.Series != 2 || got.Bytes < held || got.Bytes > 2*held {
		t.Errorf("1.0: %+v, %v; held are %d", got, err, held)
	}
	m2 := v2Request()
	held = decodedBytes(reflect.ValueOf(*m2)) + int64(len("__name__apples")+2*len("x"))
	got, err = CostV2(encode(t, m2), unlimited)
	if err != nil || got.Series != 2 || got.Bytes < held || got.Bytes > 2*held {
		t.Errorf("2.0: %+v, %v; held are %d", got, err, held)
	}
}

// Each kind of element is counted: another element adds its size.
func TestCost_CountsEveryKindOfElement(t *testing.T) {
	cost := func(m proto.Message) int64 {
		var c Cost
		var err error
		if _, ok := m.(*writev2.Request); ok {
			c, err = CostV2(encode(t, m), unlimited)
		} else {
			c, err = CostV1(encode(t, m), unlimited)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c.Bytes
	}
	v1 := func(f func(*prompb.TimeSeries)) int64 {
		m := v1Request()
		f(&m.Timeseries[0])
		return cost(m) - cost(v1Request())
	}
	v2 := func(f func(*writev2.TimeSeries)) int64 {
		m := v2Request()
		f(&m.Timeseries[0])
		return cost(m) - cost(v2Request())
	}
	for name, c := range map[string]struct{ got, want int64 }{
		"label":             {v1(func(s *prompb.TimeSeries) { s.Labels = append(s.Labels, prompb.Label{}) }), labelBytes},
		"sample":            {v1(func(s *prompb.TimeSeries) { s.Samples = append(s.Samples, prompb.Sample{}) }), sampleBytes},
		"exemplar":          {v1(func(s *prompb.TimeSeries) { s.Exemplars = append(s.Exemplars, prompb.Exemplar{}) }), exemplarBytes},
		"label of exemplar": {v1(func(s *prompb.TimeSeries) { s.Exemplars[0].Labels = append(s.Exemplars[0].Labels, prompb.Label{}) }), labelBytes},
		"histogram":         {v1(func(s *prompb.TimeSeries) { s.Histograms = append(s.Histograms, prompb.Histogram{}) }), histogramBytes},
		"span": {v1(func(s *prompb.TimeSeries) {
			s.Histograms[0].NegativeSpans = append(s.Histograms[0].NegativeSpans, prompb.BucketSpan{})
		}), spanBytes},
		"delta": {v1(func(s *prompb.TimeSeries) {
			s.Histograms[0].PositiveDeltas = append(s.Histograms[0].PositiveDeltas, 1<<50)
		}), number64},
		"count":      {v1(func(s *prompb.TimeSeries) { s.Histograms[0].PositiveCounts = append(s.Histograms[0].PositiveCounts, 1) }), number64},
		"custom":     {v1(func(s *prompb.TimeSeries) { s.Histograms[0].CustomValues = append(s.Histograms[0].CustomValues, 1) }), number64},
		"v2 sample":  {v2(func(s *writev2.TimeSeries) { s.Samples = append(s.Samples, writev2.Sample{}) }), sampleBytes},
		"v2 labels":  {v2(func(s *writev2.TimeSeries) { s.LabelsRefs = append(s.LabelsRefs, 2) }), number32 + int64(len("apples"))},
		"v2 outside": {v2(func(s *writev2.TimeSeries) { s.LabelsRefs = append(s.LabelsRefs, 400) }), number32},
		"v2 exemplar": {v2(func(s *writev2.TimeSeries) { s.Exemplars[0].LabelsRefs = append(s.Exemplars[0].LabelsRefs, 1) }),
			number32 + int64(len("__name__"))},
		"v2 histogram": {v2(func(s *writev2.TimeSeries) { s.Histograms = append(s.Histograms, writev2.Histogram{}) }), histogramBytes},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes more, want %d", name, c.got, c.want)
		}
	}
	m := v2Request()
	m.Symbols = append(m.Symbols, "another")
	if got := cost(m) - cost(v2Request()); got != textBytes {
		t.Errorf("symbol: %d bytes more", got)
	}
}

func TestCost_OfManySmallMessagesIsLarge(t *testing.T) {
	empty := bytes.Repeat([]byte{0x0A, 0}, 1<<16)
	got, err := CostV1(empty, unlimited)
	if err != nil || got != (Cost{1 << 16, seriesBytes << 16}) {
		t.Errorf("%+v, %v", got, err)
	}
	// It stops at the limit.
	if got, err = CostV1(empty, 1000); err != nil || got.Bytes <= 1000 || got.Series > 10 {
		t.Errorf("%+v, %v", got, err)
	}
	// One symbol of 1 kB in a thousand label sets, sent after them.
	series := bytes.Repeat([]byte{0x2A, 4, 0x0A, 2, 0, 0}, 1000)
	text := append([]byte{0x22, 0x80, 0x08}, bytes.Repeat([]byte("x"), 1024)...)
	if got, err = CostV2(append(series, text...), unlimited); err != nil || got.Bytes < 2*1024*1000 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCost_CountsUnpackedNumbers(t *testing.T) {
	// labels_refs in two fields, both of the symbol "abc".
	src := []byte{0x22, 3, 'a', 'b', 'c', 0x2A, 4, 0x08, 0, 0x08, 0}
	got, err := CostV2(src, unlimited)
	if want := int64(textBytes + seriesBytes + 2*(number32+3)); err != nil || got.Bytes != want {
		t.Errorf("%+v, %v; want %d", got, err, want)
	}
}

func TestCost_CutRequestIsCorrupt(t *testing.T) {
	for name, f := range map[string]func() (Cost, error){
		"tag":     func() (Cost, error) { return CostV1([]byte{0x80}, unlimited) },
		"length":  func() (Cost, error) { return CostV1([]byte{0x0A, 5, 1}, unlimited) },
		"inside":  func() (Cost, error) { return CostV1([]byte{0x0A, 2, 0x0A, 7}, unlimited) },
		"field 0": func() (Cost, error) { return CostV1([]byte{0x02, 0}, unlimited) },
		"symbol":  func() (Cost, error) { return CostV2([]byte{0x22, 5, 1}, unlimited) },
		"refs":    func() (Cost, error) { return CostV2([]byte{0x2A, 3, 0x0A, 1, 0x80}, unlimited) },
	} {
		if _, err := f(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A decoded request is never larger than its cost.
func FuzzCost(f *testing.F) {
	f.Add(encode(f, v1Request()), encode(f, v2Request()))
	f.Add(bytes.Repeat([]byte{0x0A, 0}, 100), bytes.Repeat([]byte{0x2A, 0}, 100))
	f.Add([]byte{0x0A, 2, 0x22, 0}, []byte{0x22, 1, 'a', 0x2A, 3, 0x0A, 1, 0})
	f.Fuzz(func(t *testing.T, one, two []byte) {
		if cost, err := CostV1(one, unlimited); err == nil {
			var m prompb.WriteRequest
			if proto.Unmarshal(one, &m) == nil && (decodedBytes(reflect.ValueOf(m)) > cost.Bytes || len(m.Timeseries) > cost.Series) {
				t.Errorf("1.0: %+v, decoded %d bytes, %d series", cost, decodedBytes(reflect.ValueOf(m)), len(m.Timeseries))
			}
		} else if !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
		if cost, err := CostV2(two, unlimited); err == nil {
			var m writev2.Request
			if proto.Unmarshal(two, &m) != nil {
				return
			}
			held := decodedBytes(reflect.ValueOf(m))
			for _, s := range m.Timeseries {
				for _, ref := range s.LabelsRefs {
					if int(ref) < len(m.Symbols) {
						held += int64(len(m.Symbols[ref]))
					}
				}
			}
			if held > cost.Bytes || len(m.Timeseries) > cost.Series {
				t.Errorf("2.0: %+v, decoded %d bytes, %d series", cost, held, len(m.Timeseries))
			}
		} else if !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	})
}
