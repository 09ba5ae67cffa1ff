package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ferula-io/ferula/bench/proc"
)

// pages says what the targets of a fleet serve.
type pages struct {
	gzip, shuffled bool // compressed; lines in another order each time
	real           bool // in the layouts of exporters, see layouts
}

// fleet serves the /metrics of all targets: each has a loopback address of its own, so that a scraper has a connection to each.
type fleet struct {
	pages
	server     http.Server
	addresses  []string
	layouts    [][]line
	native     http.Handler // protobuf with native histograms, of every fourth target of a real fleet; nil for others
	begun      time.Time
	served     atomic.Uint64
	generation int // of the pods that are replaced
}

// line is a line of a page without its value.
type line struct {
	text     string
	rate     uint64 // of the value, per second; 0: it does not change
	exemplar bool   // with one
	comment  bool   // no sample
}

// newFleet starts a fleet. Close must be called.
func newFleet(targets, series int, p pages) (*fleet, error) {
	f := &fleet{pages: p, begun: time.Now(), layouts: [][]line{counters(series)}}
	if p.real {
		f.layouts, f.native = layouts(), nativeHistograms()
	}
	f.server.Handler = f
	port := "0"
	for i := range targets {
		l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:%s", 1+i>>16, i>>8&255, i&255, port))
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		f.addresses = append(f.addresses, l.Addr().String())
		go f.server.Serve(l) // until Close
	}
	return f, nil
}

// Close ends the targets.
func (f *fleet) Close() error { return f.server.Close() }

// ServeHTTP implements http.Handler: it serves the page of a target, whose counters rise with time.
func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/target/"))
	if err != nil || n < 0 || n >= len(f.addresses) {
		http.NotFound(w, r)
		return
	}
	if f.native != nil && n%4 == 3 {
		f.native.ServeHTTP(w, r)
		return
	}
	page := f.page(f.layouts[n%len(f.layouts)], n)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	if f.real {
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	}
	if !f.gzip {
		_, _ = w.Write(page) // a scraper that has disconnected reports it itself
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level exists
	_, _ = z.Write(page)
	_ = z.Close()
}

func (f *fleet) page(lines []line, target int) []byte {
	ms := uint64(time.Since(f.begun).Milliseconds())
	from, step := uint64(0), uint64(1)
	if f.shuffled {
		from, step = f.served.Add(1)*7919, 611953 // a prime that divides no number of lines
	}
	page := make([]byte, 0, 100*len(lines))
	for i := range uint64(len(lines)) {
		l := lines[(from+i*step)%uint64(len(lines))]
		page = append(page, l.text...)
		if !l.comment {
			page = strconv.AppendUint(append(page, ' '), ms*l.rate/1000+uint64(target), 10)
		}
		if l.exemplar {
			page = fmt.Appendf(page, ` # {trace_id="%032x"} 0.25 %d.%03d`, ms, time.Now().Unix(), ms%1000)
		}
		page = append(page, '\n')
	}
	if f.real {
		page = append(page, "# EOF\n"...)
	}
	return page
}

// samples returns the number of samples of all pages. A native histogram is one.
func (f *fleet) samples() (n int) {
	for target := range f.addresses {
		if f.native != nil && target%4 == 3 {
			n += nativePerTarget
			continue
		}
		for _, l := range f.layouts[target%len(f.layouts)] {
			if !l.comment {
				n++
			}
		}
	}
	return n
}

// writeList writes the targets for file_sd_configs. Pods of which a tenth has another name each time are those of a fleet that
// is deployed again.
func (f *fleet) writeList(path string) error {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := make([]group, len(f.addresses))
	for i, address := range f.addresses {
		pod := (f.generation + 9 - i%10) / 10 // a tenth changes with each generation
		groups[i] = group{[]string{address}, map[string]string{
			"__metrics_path__": "/target/" + strconv.Itoa(i), "target": strconv.Itoa(i), "pod": fmt.Sprintf("bench-%d-%d", i, pod),
		}}
	}
	f.generation++
	text, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// replace replaces a tenth of the pods now and after each interval, until work has ended.
func (f *fleet) replace(ctx context.Context, list string, every time.Duration, work func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for {
			if err := f.writeList(list); err != nil || proc.Wait(ctx, every) != nil {
				done <- err
				return
			}
		}
	}()
	err := work()
	cancel()
	return errors.Join(err, <-done)
}

// counters is a page of a number of counters, half of which change.
func counters(series int) (lines []line) {
	for i := range series {
		text := fmt.Sprintf(`bench_scraped_total{method="GET",path="/api/v1/%d",code="%d"}`, i/4, 200+i%4)
		lines = append(lines, line{text: text, rate: uint64(i % 2 * (i%100 + 1))})
	}
	return lines
}

// family is a family of metrics of a real page. Its series are the product of its dimensions: label and number of values.
type family struct {
	name, kind string
	dimensions []dimension
	rate       uint64 // of the series that change
}

type dimension struct {
	label string
	n     int
}

// layouts returns pages in the shapes of node_exporter, a JVM with Micrometer, and etcd: about 900 series each.
func layouts() [][]line {
	var gauges []family
	for i := range 180 { // meminfo, vmstat, netstat, sockstat
		gauges = append(gauges, family{fmt.Sprintf("node_group%d_value_%d_bytes", i%6, i), "gauge", nil, uint64(i % 2 * i)})
	}
	return [][]line{
		text(append(gauges,
			family{"node_cpu_seconds", "counter", []dimension{{"cpu", 16}, {"mode", 8}}, 3},
			family{"node_network_bytes", "counter", []dimension{{"device", 12}, {"direction", 20}}, 1500},
			family{"node_disk_io", "counter", []dimension{{"device", 8}, {"operation", 17}}, 20},
			family{"node_filesystem_size_bytes", "gauge", []dimension{{"device", 14}, {"fstype", 2}, {"mountpoint", 7}}, 0},
		)...),
		text(
			family{"jvm_memory_used_bytes", "gauge", []dimension{{"area", 2}, {"id", 7}}, 90_000},
			family{"jvm_threads_states_threads", "gauge", []dimension{{"state", 6}}, 0},
			family{"jvm_gc_pause_seconds", "summary", []dimension{{"action", 3}, {"cause", 4}}, 2},
			family{"http_server_requests_seconds", "histogram", []dimension{{"method", 2}, {"outcome", 2}, {"uri", 12}}, 40},
			family{"logback_events", "counter", []dimension{{"level", 5}}, 1},
		),
		text(
			family{"grpc_server_handled", "counter", []dimension{{"grpc_code", 17}, {"grpc_method", 30}}, 1},
			family{"etcd_disk_wal_fsync_duration_seconds", "histogram", nil, 9},
			family{"etcd_network_peer_round_trip_time_seconds", "histogram", []dimension{{"To", 4}}, 30},
			family{"etcd_request_duration_seconds", "histogram", []dimension{{"operation", 5}, {"type", 3}}, 70},
		),
	}
}

const bounds = 14 // buckets of a classic histogram, +Inf excluded

// text returns the OpenMetrics lines of families. Every second set of labels of a counter or gauge does not change.
func text(families ...family) (lines []line) {
	for _, f := range families {
		lines = append(lines, line{text: "# HELP " + f.name + " Something that is measured.", comment: true},
			line{text: "# TYPE " + f.name + " " + f.kind, comment: true})
		sets := []string{""}
		for _, d := range f.dimensions {
			var next []string
			for _, set := range sets {
				for i := range d.n {
					next = append(next, fmt.Sprintf(`%s%s="%s-%d",`, set, d.label, d.label, i))
				}
			}
			sets = next
		}
		for i, set := range sets {
			sample := func(suffix, more string, rate uint64, exemplar bool) {
				labels := "{" + strings.TrimSuffix(set+more, ",") + "}"
				lines = append(lines, line{text: f.name + suffix + labels, rate: rate, exemplar: exemplar})
			}
			switch f.kind {
			case "gauge":
				sample("", "", f.rate*uint64(i%2), false)
			case "counter":
				sample("_total", "", f.rate*uint64(i%2), false)
			case "summary":
				sample("_count", "", f.rate, false)
				sample("_sum", "", f.rate, false)
			case "histogram":
				for b := range bounds {
					sample("_bucket", fmt.Sprintf(`le="%d.0"`, 1<<b), f.rate*uint64(b+1)/4, b == 5)
				}
				sample("_bucket", `le="+Inf"`, f.rate*bounds, false)
				sample("_count", "", f.rate*bounds, false)
				sample("_sum", "", f.rate, false)
			}
		}
	}
	return lines
}

const nativePerTarget = 100

// nativeHistograms serves native histograms that change, with exemplars.
func nativeHistograms() http.Handler {
	registry := prometheus.NewRegistry()
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "bench_native_seconds", Help: "Native histograms.", NativeHistogramBucketFactor: 1.1,
	}, []string{"route"})
	registry.MustRegister(h)
	page := promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	var n atomic.Uint64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := range nativePerTarget {
			v := float64(n.Add(1)%1000+1) / 100
			of := h.WithLabelValues("/route/" + strconv.Itoa(i)).(prometheus.ExemplarObserver)
			of.ObserveWithExemplar(v, prometheus.Labels{"trace_id": strconv.FormatUint(n.Load(), 16)})
		}
		page.ServeHTTP(w, r)
	})
}
