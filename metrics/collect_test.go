package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// scraped returns the status and the body of a handler's response.
func scraped(s *Set, accept string) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	NewHandler(HandlerOptions{Sets: []*Set{s}, Metadata: true, CreatedLines: true}).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func sortedLines(page string) string {
	return strings.Join(slices.Sorted(strings.Lines(page)), "")
}

var (
	readsDesc    = NewDesc("disk_reads_total", "Reads.", "device")
	roomDesc     = NewDesc("room_celsius", "Temperature.", "room")
	sizesDesc    = NewDesc("sizes_bytes", "Sizes.", "kind")
	durationDesc = NewDesc("duration_seconds", "Durations.")
)

func collectAll(sink *Sink) error {
	at := time.UnixMilli(1_700_000_000_500)
	sink.Counter(readsDesc, 7, "sdb").Created(at).Exemplar(2, at, "trace_id", "abc")
	sink.Counter(readsDesc, 1e9, "sda")
	sink.Gauge(roomDesc, 20.5, "kitchen\n").Timestamp(at)
	sink.Histogram(sizesDesc, 3, 12.5, []Bucket{{1, 1}, {10, 2}}, "a").Exemplar(11, at, "trace_id", "x")
	sink.Summary(durationDesc, 4, 2, []Quantile{{0.5, 0.25}, {1, 1}})
	sink.Untyped(NewDesc("http.requests", "", "http.method"), -3, "GET")
	return nil
}

func TestRegisterCollector_MetricsAreAmongThoseOfTheSetInAllFormats(t *testing.T) {
	s := NewSet()
	s.NewGauge("e_gauge", nil).Set(1)
	s.NewGauge("z_gauge", nil).Set(2)
	s.NewCounterVec("disk_reads_total", "Reads.", "device").With("ram").Inc()
	s.RegisterCollector(collectAll)
	for name, want := range map[string]string{
		"": `# HELP disk_reads_total Reads.
# TYPE disk_reads_total counter
disk_reads_total{device="ram"} 1
disk_reads_total{device="sda"} 1000000000
disk_reads_total{device="sdb"} 7
# HELP duration_seconds Durations.
# TYPE duration_seconds summary
duration_seconds{quantile="0.5"} 0.25
duration_seconds{quantile="1"} 1
duration_seconds_sum 2
duration_seconds_count 4
# HELP e_gauge
# TYPE e_gauge gauge
e_gauge 1
# HELP room_celsius Temperature.
# TYPE room_celsius gauge
room_celsius{room="kitchen\n"} 20.5 1700000000500
# HELP sizes_bytes Sizes.
# TYPE sizes_bytes histogram
sizes_bytes_bucket{kind="a",le="1"} 1
sizes_bytes_bucket{kind="a",le="10"} 2
sizes_bytes_bucket{kind="a",le="+Inf"} 3
sizes_bytes_sum{kind="a"} 12.5
sizes_bytes_count{kind="a"} 3
# HELP z_gauge
# TYPE z_gauge gauge
z_gauge 2
`,
		acceptOpenMetrics: `# HELP disk_reads Reads.
# TYPE disk_reads counter
disk_reads_total{device="ram"} 1.0
disk_reads_total{device="sda"} 1e+09
disk_reads_total{device="sdb"} 7.0 # {trace_id="abc"} 2.0 1.7000000005e+09
disk_reads_created{device="sdb"} 1.7000000005e+09
# HELP duration_seconds Durations.
# TYPE duration_seconds summary
duration_seconds{quantile="0.5"} 0.25
duration_seconds{quantile="1.0"} 1.0
duration_seconds_sum 2.0
duration_seconds_count 4
# TYPE e_gauge gauge
e_gauge 1.0
# HELP room_celsius Temperature.
# TYPE room_celsius gauge
room_celsius{room="kitchen\n"} 20.5 1.7000000005e+09
# HELP sizes_bytes Sizes.
# TYPE sizes_bytes histogram
sizes_bytes_bucket{kind="a",le="1.0"} 1
sizes_bytes_bucket{kind="a",le="10.0"} 2
sizes_bytes_bucket{kind="a",le="+Inf"} 3 # {trace_id="x"} 11.0 1.7000000005e+09
sizes_bytes_sum{kind="a"} 12.5
sizes_bytes_count{kind="a"} 3
# TYPE z_gauge gauge
z_gauge 2.0
# EOF
`,
	} {
		status, page := scraped(s, name)
		var kept []string
		for line := range strings.Lines(page) { // the created time of the registered counter, and the other family
			if !strings.Contains(line, `disk_reads_created{device="ram"}`) && !strings.Contains(line, "http_requests") {
				kept = append(kept, line)
			}
		}
		if got := strings.Join(kept, ""); status != http.StatusOK || got != want {
			t.Errorf("accept %q: status %d\n%s\nwant\n%s", name, status, got, want)
		}
		if !strings.Contains(page, `http_requests{http_method="GET"} -3`) {
			t.Errorf("accept %q: names are not escaped:\n%s", name, page)
		}
	}
	if _, page := scraped(s, "text/plain;version=1.0.0;escaping=allow-utf-8"); !strings.Contains(page, `{"http.requests","http.method"="GET"} -3`) {
		t.Errorf("names are not quoted:\n%s", page)
	}
}

// WritePrometheus writes the lines of the handler's response in text format.
func TestRegisterCollector_WritePrometheusHasTheSamePage(t *testing.T) {
	for _, withMetadata := range []bool{false, true} {
		ExposeMetadata(withMetadata)
		defer ExposeMetadata(false)
		s := NewSet()
		for i := range 2000 { // more than the buffer of a scrape holds
			s.NewGauge(fmt.Sprintf(`room_celsius{room="%d"}`, i), nil)
		}
		s.NewSummary(`a_seconds{x="1"}`).Update(1)
		s.RegisterCollector(func(sink *Sink) error {
			sink.Gauge(roomDesc, 1, "1001a")
			sink.Summary(NewDesc("a_seconds", "", "x"), 1, 1, nil, "2")
			return nil
		})
		var got bytes.Buffer
		s.WritePrometheus(&got)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if got.String() != w.Body.String() || !strings.Contains(got.String(), "room_celsius{room=\"1001\"} 0\nroom_celsius{room=\"1001a\"} 1\nroom_celsius{room=\"1002\"} 0\n") {
			t.Errorf("metadata %v: pages differ: %d and %d bytes", withMetadata, got.Len(), w.Body.Len())
		}
	}
}

func TestRegisterCollector_NameOrLabelAloneIsEscaped(t *testing.T) {
	for want, collect := range map[string]func(sink *Sink){
		"http_requests 1\n":                 func(sink *Sink) { sink.Gauge(NewDesc("http.requests", ""), 1) },
		"requests{http_method=\"GET\"} 1\n": func(sink *Sink) { sink.Gauge(NewDesc("requests", "", "http.method"), 1, "GET") },
		"a_requests{http_path=\"/\"} 1\n":   func(sink *Sink) { sink.Gauge(NewDesc("a.requests", "", "http.path"), 1, "/") },
		"plain_requests{path=\"/a.b\"} 1\n": func(sink *Sink) { sink.Gauge(NewDesc("plain_requests", "", "path"), 1, "/a.b") },
	} {
		s := NewSet()
		s.RegisterCollector(func(sink *Sink) error { collect(sink); return nil })
		if _, page := scraped(s, "text/plain;version=1.0.0;escaping=underscores"); !strings.Contains(page, want) {
			t.Errorf("%s instead of %s", page, want)
		}
	}
}

func TestRegisterCollector_HasPrefixAndLabelsOfTheSet(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": "prod"}})
	s.RegisterCollector(func(sink *Sink) error {
		sink.Gauge(roomDesc, 1, "a")
		sink.Gauge(NewDesc("up", ""), 1)
		sink.Gauge(NewDesc("dotted.name", ""), 1)
		return nil
	})
	b := text(s)
	if want := "app_room_celsius{env=\"prod\",room=\"a\"} 1\napp_up{env=\"prod\"} 1\n{\"app_dotted.name\",env=\"prod\"} 1\n"; sortedLines(b) != sortedLines(want) {
		t.Errorf("%s", b)
	}
	s.RegisterCollector(func(sink *Sink) error {
		sink.Gauge(NewDesc("down", "", "env"), 1, "x")
		return nil
	})
	if status, page := scraped(s, ""); status != http.StatusInternalServerError || !strings.Contains(page, `family "down" has the label env, as its set has`) {
		t.Errorf("status %d: %s", status, page)
	}
}

// Each mistake fails a handler's scrape, in every format, with a text that names the mistake. WritePrometheus writes the
// other metrics.
func TestRegisterCollector_MistakesFailTheScrapeAndNameTheMetric(t *testing.T) {
	x := NewDesc("x", "Help.", "l")
	for name, c := range map[string]struct {
		collect func(*Sink) error
		want    string
	}{
		"error":              {func(*Sink) error { return errors.New("disk is gone") }, "disk is gone"},
		"panic":              {func(*Sink) error { panic("boom") }, "a collector panicked: boom"},
		"duplicate":          {func(s *Sink) error { s.Gauge(x, 1, "a"); s.Gauge(x, 2, "a"); return nil }, `metric x{l="a"} was collected before`},
		"equal after U+FFFD": {func(s *Sink) error { s.Gauge(x, 1, "\xff"); s.Gauge(x, 2, "\uFFFD"); return nil }, "was collected before"},
		"label count":        {func(s *Sink) error { s.Gauge(x, 1); return nil }, `family "x" has 1 labels; got 0 values`},
		"two types":          {func(s *Sink) error { s.Gauge(x, 1, "a"); s.Counter(x, 1, "b"); return nil }, `metric x{l="b"} is a counter, its family a gauge`},
		"two helps":          {func(s *Sink) error { s.Gauge(x, 1, "a"); s.Gauge(NewDesc("x", "Other."), 1); return nil }, `has the help "Help.", its family "Other."`},
		"registered":         {func(s *Sink) error { s.Gauge(NewDesc("g", ""), 1); return nil }, "metric g is also registered in the set itself"},
		"registered type":    {func(s *Sink) error { s.Counter(NewDesc("g", "", "l"), 1, "a"); return nil }, `metric g{l="a"} is a counter, its family in the set a gauge`},
		"vmrange":            {func(s *Sink) error { s.Untyped(NewDesc("ranges", "", "l"), 1, "a"); return nil }, "its family in the set a vmrange histogram"},
		"suffix":             {func(s *Sink) error { s.Gauge(NewDesc("h_count", ""), 1); return nil }, "metric h_count has the name of lines of the histogram h"},
		"suffix of ours": {func(s *Sink) error { s.Summary(NewDesc("part", ""), 1, 1, nil); return nil },
			"metric part has lines with the name of the registered family part_sum"},
		"suffix of both": {func(s *Sink) error {
			s.Summary(NewDesc("y", ""), 1, 1, nil)
			s.Gauge(NewDesc("y_count", ""), 1)
			return nil
		}, "metric y_count has the name of lines of the summary y"},
		"no name":        {func(s *Sink) error { s.Gauge(NewDesc("", ""), 1); return nil }, `family "" has an invalid name`},
		"name":           {func(s *Sink) error { s.Gauge(NewDesc("\xff", ""), 1); return nil }, `family "\xff" has an invalid name`},
		"label":          {func(s *Sink) error { s.Gauge(NewDesc("x", "", ""), 1, "a"); return nil }, `family "x": label "" is not valid`},
		"label twice":    {func(s *Sink) error { s.Gauge(NewDesc("x", "", "a", "a"), 1, "1", "2"); return nil }, `family "x": label "a" is there twice`},
		"le":             {func(s *Sink) error { s.Histogram(NewDesc("x", "", "le"), 1, 1, nil, "a"); return nil }, `family "x": the label le`},
		"bounds":         {func(s *Sink) error { s.Histogram(x, 2, 1, []Bucket{{2, 1}, {1, 1}}, "a"); return nil }, `family "x": bound 1 of a bucket is not above`},
		"no bound":       {func(s *Sink) error { s.Histogram(x, 2, 1, []Bucket{{math.NaN(), 1}}, "a"); return nil }, `family "x": bound NaN of a bucket`},
		"counts":         {func(s *Sink) error { s.Histogram(x, 2, 1, []Bucket{{1, 2}, {2, 1}}, "a"); return nil }, "has 1 values, fewer than"},
		"count":          {func(s *Sink) error { s.Histogram(x, 2, 1, []Bucket{{1, 3}}, "a"); return nil }, "the bucket of 1 has 3 values of 2"},
		"quantiles":      {func(s *Sink) error { s.Summary(x, 2, 1, []Quantile{{1.5, 3}}, "a"); return nil }, "quantile 1.5 is outside"},
		"quantile order": {func(s *Sink) error { s.Summary(x, 2, 1, []Quantile{{0.5, 3}, {0.5, 3}}, "a"); return nil }, "not above the one before"},
		"native":         {func(s *Sink) error { s.Gauge(x, 1, "a").Native(NativeBuckets{}); return nil }, `metric x{l="a"} is no histogram`},
		"native schema":  {func(s *Sink) error { s.Histogram(x, 1, 1, nil, "a").Native(NativeBuckets{Schema: 9}); return nil }, "schema 9"},
		"native indexes": {func(s *Sink) error {
			s.Histogram(x, 9, 1, nil, "a").Native(NativeBuckets{Positive: []NativeBucket{{1, 1}, {1, 1}}})
			return nil
		}, "index 1 of a native bucket"},
		"native counts": {func(s *Sink) error {
			s.Histogram(x, 1, 1, nil, "a").Native(NativeBuckets{Positive: []NativeBucket{{1, 2}}})
			return nil
		}, "has fewer values than its native buckets"},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSet()
			s.NewGauge("g", nil).Set(5)
			s.NewPrometheusHistogram("h")
			s.NewGauge("part_sum", nil)
			s.NewHistogram("ranges").Update(1)
			s.RegisterCollector(func(sink *Sink) error { sink.Gauge(roomDesc, 1, "valid"); return nil })
			s.RegisterCollector(c.collect)
			for range 2 { // the second scrape reuses memory of the first one
				for _, accept := range []string{"", acceptOpenMetrics} {
					if status, page := scraped(s, accept); status != http.StatusInternalServerError || !strings.Contains(page, c.want) {
						t.Errorf("accept %q: status %d: %s", accept, status, page)
					}
				}
				b := text(s)
				lines := strings.Split(strings.TrimSpace(b), "\n")
				for i, line := range lines {
					name, _, _ := strings.Cut(line, " ")
					for _, other := range lines[:i] {
						if strings.HasPrefix(other, name+" ") {
							t.Errorf("%s is there twice", name)
						}
					}
				}
				if page := b; !strings.Contains(page, "room_celsius{room=\"valid\"} 1\n") || !strings.Contains(page, "g 5\n") {
					t.Errorf("the valid metrics are missing:\n%s", page)
				}
			}
		})
	}
}

func TestRegisterCollector_ManyErrorsAreCounted(t *testing.T) {
	s := NewSet()
	s.RegisterCollector(func(sink *Sink) error {
		for i := range 1000 {
			sink.Error(fmt.Errorf("disk %d is gone", i))
		}
		return nil
	})
	if _, page := scraped(s, ""); !strings.Contains(page, "disk 19 is gone\nand 980 more") || strings.Contains(page, "disk 20 ") {
		t.Error(page)
	}
}

func TestRegisterCollector_SeriesThatAreGoneAreNotKept(t *testing.T) {
	s := NewSet()
	round := 0
	unregister := s.RegisterCollector(func(sink *Sink) error {
		d := NewDesc("churning", "", "id") // a description for each scrape must not stay either
		for i := range 100 {
			sink.Gauge(d, 1, fmt.Sprint(round*60+i))
		}
		return nil
	})
	for round = range 50 {
		b := text(s)
		if n := strings.Count(b, "\n"); n != 100 || !strings.Contains(b, fmt.Sprintf(`churning{id="%d"} 1`, round*60)) {
			t.Fatalf("round %d: %d lines", round, n)
		}
	}
	sink := s.collectors.Load().sinks.get()
	if len(sink.byName) != 100 || len(sink.families) != 1 || len(sink.sorted) != 100 {
		t.Errorf("%d names, %d families, %d entries are kept", len(sink.byName), len(sink.families), len(sink.sorted))
	}
	unregister()
	unregister()
	if status, page := scraped(s, ""); status != http.StatusOK || page != "" {
		t.Errorf("status %d: %s", status, page)
	}
}

func TestRegisterCollector_UnregisterAllMetricsRemovesIt(t *testing.T) {
	s := NewSet()
	s.RegisterCollector(collectAll)
	s.UnregisterAllMetrics()
	if _, page := scraped(s, ""); page != "" {
		t.Error(page)
	}
}

func TestCollectedFamilies_AreThoseOfTheLastScrape(t *testing.T) {
	s := NewSet()
	s.NewCounter("registered_total")
	s.RegisterCollector(collectAll)
	if s.HasFamily("disk_reads_total") || !s.HasFamily("registered_total") {
		t.Error("before a scrape")
	}
	s.WritePrometheus(io.Discard)
	families := s.CollectedFamilies()
	if len(families) != 5 || families[1] != (Family{"disk_reads_total", "counter", "Reads.", ""}) || families[0].Name != `"http.requests"` {
		t.Errorf("%q", families)
	}
	for name, want := range map[string]bool{"disk_reads_total": true, "http.requests": true, "registered_total": true, "disk": false, "z": false} {
		if s.HasFamily(name) != want {
			t.Errorf("HasFamily(%q) is %v", name, !want)
		}
	}
}

// Goroutines of a collector may share its sink, and scrapes may overlap.
func TestRegisterCollector_ConcurrentUse(t *testing.T) {
	s := NewSet()
	s.RegisterCollector(func(sink *Sink) error {
		var wg sync.WaitGroup
		for part := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range 50 {
					sink.Histogram(sizesDesc, 2, 1, []Bucket{{1, 1}}, fmt.Sprint(part, "/", i))
				}
			}()
		}
		wg.Wait()
		return nil
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(2)
		go func() {
			defer wg.Done()
			for i := range 10 {
				if status, page := scraped(s, []string{"", acceptOpenMetrics}[i%2]); status != http.StatusOK || strings.Count(page, "_count{") != 200 {
					t.Errorf("status %d, %d histograms", status, strings.Count(page, "_count{"))
				}
			}
		}()
		go func() {
			defer wg.Done()
			for range 10 {
				s.RegisterCollector(func(*Sink) error { return nil })()
				s.WritePrometheus(io.Discard)
			}
		}()
	}
	wg.Wait()
}

func TestRegisterCollector_ScrapeDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("pools are not themselves under the race detector")
	}
	s := NewSet()
	update := mixed(s, 300)
	update(1)
	values := make([]string, 500)
	for i := range values {
		values[i] = fmt.Sprint("device", i)
	}
	buckets, quantiles := []Bucket{{1, 1}, {2, 5}}, []Quantile{{0.5, 1}}
	native := NativeBuckets{Schema: 3, Positive: []NativeBucket{{4, 1}, {9, 1}}}
	at := time.UnixMilli(1_700_000_000_000)
	s.RegisterCollector(func(sink *Sink) error {
		for _, value := range values {
			sink.Counter(readsDesc, 5, value).Created(at).Exemplar(1, at, "trace_id", "abc")
			sink.Gauge(roomDesc, 5, value)
			sink.Histogram(sizesDesc, 7, 1, buckets, value).Native(native)
		}
		sink.Summary(durationDesc, 5, 1, quantiles)
		return nil
	})
	if n := testing.AllocsPerRun(20, func() { s.WritePrometheus(io.Discard) }); n != 0 {
		t.Errorf("%v allocations of WritePrometheus", n)
	}
	for _, accept := range []string{"", acceptOpenMetrics, "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"} {
		h, w := s.Handler(), &discard{header: http.Header{}}
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		if n := testing.AllocsPerRun(20, func() { h.ServeHTTP(w, r) }); n != 0 {
			t.Errorf("accept %q: %v allocations", accept, n)
		}
	}
}
