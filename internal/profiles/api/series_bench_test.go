package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// discard is a response of which only the number of bytes is kept.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.bytes += len(p); return len(p), nil }

// podLabels are the 14 labels of a pod, of 60 to 90 bytes each, in the order of their names.
func podLabels(service string, pod int) (set []byte) {
	set = labelenc.AppendLabel(set, profiles.LabelName, "process_cpu")
	for i := range 11 {
		name := fmt.Sprintf("label_%02d_of_the_pod", i)
		set = labelenc.AppendLabel(set, name, fmt.Sprintf("%s-%d-%s", service, pod, strings.Repeat("v", 30+2*i)))
	}
	set = labelenc.AppendLabel(set, "pod", fmt.Sprintf("pod-%d", pod))
	return labelenc.AppendLabel(set, profiles.LabelService, service)
}

// BenchmarkSelectSeries_Exemplars requests 6,000 points by pod and by service, without exemplars and with them.
func BenchmarkSelectSeries_Exemplars(b *testing.B) {
	s, err := store.New(store.Options{Dir: b.TempDir(), Retention: -1, HeadBytes: 2 << 30, HeadAge: 1 << 50, BlockBytes: 1},
		slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	must(b, err)
	must(b, s.Open())
	defer s.Close()
	const rows, startMS, hourMS = 24_000, 1_700_000_000_000, 3_600_000
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1e7)
	e.Sample([]uint64{e.Location(e.Function("main", "", "", 0), 1)}, 1)
	raw := e.Append(nil)
	var batch []profiles.RawProfile
	for i := range rows {
		batch = append(batch, profiles.RawProfile{Labels: podLabels(fmt.Sprintf("service-%03d", i%100), i/100%4),
			TimeNS: (startMS + int64(i)*(hourMS/rows)) * 1e6, Raw: raw})
		if len(batch) == 1000 {
			must(b, s.Append(context.Background(), AnonymousTenant, batch))
			batch = batch[:0]
		}
		if i%4000 == 3999 && i < 20000 {
			must(b, s.Flush(context.Background()))
		}
	}
	mux := http.NewServeMux()
	New(Options{}, nil, query.New(query.Options{}, s)).Register(mux, "", nil)
	for _, by := range []string{profiles.LabelService, "label_00_of_the_pod"} {
		for _, kind := range []string{"proto", "json", "proto gzip"} {
			for _, exemplars := range []profilepb.ExemplarType{1, 2} {
				b.Run(fmt.Sprintf("by %s/%s/exemplars=%v", by, kind, exemplars == 2), func(b *testing.B) {
					m, start := profilepb.SelectSeriesRequest{ProfileTypeID: cpu, LabelSelector: "{}", Start: startMS + 1237,
						End: startMS + hourMS, Step: 60, GroupBy: []string{by}, ExemplarType: exemplars}, int64(startMS)
					if strings.HasPrefix(by, "label") {
						m.Start, m.End = start+hourMS*3/4, start+hourMS
					}
					body, err := proto.Marshal(&m)
					contentType, encoding, _ := strings.Cut(kind, " ")
					if contentType == "json" {
						body = fmt.Appendf(nil, `{"profileTypeID":%q,"labelSelector":"{}","start":"%d","end":"%d","step":60,"groupBy":[%q],"exemplarType":%d}`,
							cpu, m.Start, m.End, by, exemplars)
					}
					must(b, err)
					w, from := &discard{}, processCPU(b)
					b.ReportAllocs()
					for b.Loop() {
						*w = discard{header: http.Header{}}
						r := httptest.NewRequest(http.MethodPost, querierPath+"SelectSeries", bytes.NewReader(body))
						r.Header.Set("Content-Type", "application/"+contentType)
						if encoding != "" {
							r.Header.Set("Accept-Encoding", encoding)
						}
						mux.ServeHTTP(w, r)
					}
					b.ReportMetric(float64(w.bytes), "B/response")
					b.ReportMetric(float64(processCPU(b)-from)/float64(b.N), "cpu-ns/op")
				})
			}
		}
	}
}

// processCPU returns the CPU time of the process, which other processes disturb less than wall time.
func processCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
