package remoteread

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/tsdb"
)

type queryables struct{ *tsdb.Store }

var _ storage.SampleAndChunkQueryable = queryables{}

func (b *discardWriter) Flush() {}

// BenchmarkServers compares both servers on the same four blocks, in process: without
// sockets, so that only the work on series counts.
func BenchmarkServers(b *testing.B) {
	const n = 500
	dir := b.TempDir()
	for i := range int64(4) {
		block(b, dir, n, startMS+2*i*hourMS, startMS+2*(i+1)*hourMS, 15_000)
	}
	s := open(b, dir)
	peer := remote.NewReadHandler(slog.New(slog.DiscardHandler), nil, queryables{s}, func() config.Config { return config.Config{} }, 0, 10, 1<<20)
	own := NewServer(Options{FrameBytesMax: 1 << 20}, s, slog.New(slog.DiscardHandler), nil)
	all := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m.*")
	for _, tt := range []struct {
		name       string
		form       prompb.ReadRequest_ResponseType
		mint, maxt int64
	}{
		{"chunks 8h", prompb.ReadRequest_STREAMED_XOR_CHUNKS, startMS, startMS + 8*hourMS - 1},
		{"chunks 2h cut", prompb.ReadRequest_STREAMED_XOR_CHUNKS, startMS + hourMS + 7, startMS + 3*hourMS + 7},
		{"samples 8h", prompb.ReadRequest_SAMPLES, startMS, startMS + 8*hourMS - 1},
	} {
		q := peerQuery(tt.mint, tt.maxt, all)
		for name, h := range map[string]http.Handler{"ferula": own, "prometheus": peer} {
			b.Run(tt.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				bytes := 0
				for b.Loop() {
					bytes = request(b, h, tt.form, q)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/series")
				b.ReportMetric(float64(bytes), "wire-B")
			})
		}
	}
}
