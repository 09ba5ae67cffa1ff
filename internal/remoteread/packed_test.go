package remoteread

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
)

// The encoders of the response change with its values, here within a series, too.
func TestServer_SamplesAreHardlyLongerThanThoseOfPrometheus(t *testing.T) {
	const series, samples = 150, 900 // more than two comparisons of the encoders
	var random *rand.Rand
	full := func(int) float64 { return random.NormFloat64() }
	short := func(int) float64 { return math.Round(random.Float64()*1e5) / 100 }
	for name, value := range map[string]func(i int) float64{
		"full floats": full, "two decimals": short, "zeros": func(int) float64 { return 0 },
		"first floats, then decimals": func(i int) float64 {
			if i < series/2 {
				return full(i)
			}
			return short(i)
		},
	} {
		random = rand.New(rand.NewPCG(1, 2))
		dir := t.TempDir()
		w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hourMS)
		if err != nil {
			t.Fatal(err)
		}
		var want []float64
		app := w.Appender(t.Context())
		for i := range series {
			lset := labels.FromStrings("number", strconv.Itoa(1000+i))
			for at := range int64(samples) {
				want = append(want, value(i))
				if _, err := app.Append(0, lset, startMS+at*7000, want[len(want)-1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		q := peerQuery(startMS, startMS+2*hourMS, labels.MustNewMatcher(labels.MatchNotEqual, "number", ""))
		_, _, packed := post(t, serve(t, open(t, dir), Options{}), encode(t, prompb.ReadRequest_SAMPLES, q))
		plain, err := snappy.Decode(nil, packed)
		if err != nil {
			t.Fatal(err)
		}
		if peer := len(snappy.Encode(nil, plain)); float64(len(packed)) > 1.05*float64(peer) {
			t.Errorf("%s: %d bytes, Prometheus' encoder %d", name, len(packed), peer)
		}
		var response prompb.ReadResponse
		if err := proto.Unmarshal(plain, &response); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, s := range response.Results[0].Timeseries {
			for _, one := range s.Samples {
				if n >= len(want) || one.Value != want[n] {
					t.Fatalf("%s: sample %d is %v", name, n, one)
				}
				n++
			}
		}
		if n != len(want) {
			t.Errorf("%s: %d samples, want %d", name, n, len(want))
		}
	}
}
