package httpapi_test

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	promhttp "github.com/prometheus/prometheus/discovery/http"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
)

// stubTargets implements api.Targets with targets that are not scraped.
type stubTargets struct {
	pools           []string
	active, dropped map[string][]*scrape.Target
	counts          map[string]int
}

func (s stubTargets) ScrapePools() []string                      { return s.pools }
func (s stubTargets) TargetsActive() map[string][]*scrape.Target { return s.active }
func (s stubTargets) TargetsDropped() map[string][]*scrape.Target {
	return s.dropped
}
func (s stubTargets) TargetsDroppedCounts() map[string]int { return s.counts }
func (s stubTargets) ScrapePoolConfig(pool string) (*config.ScrapeConfig, error) {
	switch pool {
	case "zeta":
		sd := promhttp.DefaultSDConfig
		sd.URL = "http://eve:SECRET@b/"
		return &config.ScrapeConfig{JobName: pool, ServiceDiscoveryConfigs: discovery.Configs{&sd}}, nil
	case "alpha":
		return &config.ScrapeConfig{JobName: pool, MetricsPath: "/<&>"}, nil
	}
	return nil, errors.New("no such pool")
}

// stubMetadata is the metric metadata of a target.
type stubMetadata []scrape.MetricMetadata

func (s stubMetadata) ListMetadata() []scrape.MetricMetadata { return s }
func (s stubMetadata) GetMetadata(family string) (scrape.MetricMetadata, bool) {
	for _, md := range s {
		if md.MetricFamily == family {
			return md, true
		}
	}
	return scrape.MetricMetadata{}, false
}
func (s stubMetadata) SizeMetadata() int   { return len(s) }
func (s stubMetadata) LengthMetadata() int { return len(s) }

func target(address, job string, params url.Values, md stubMetadata) *scrape.Target {
	cfg := &config.ScrapeConfig{
		JobName: job, Scheme: "http", MetricsPath: "/metrics", Params: params,
		ScrapeInterval: model.Duration(15 * time.Second), ScrapeTimeout: model.Duration(10 * time.Second),
	}
	discovered := model.LabelSet{"__address__": model.LabelValue(address), "__meta_odd": "<\"&\u2028\xff>"}
	t := scrape.NewTarget(labels.FromStrings(
		"__address__", address, "__scheme__", "http", "__metrics_path__", "/metrics", "__param_x", "1 & <2>",
		"__scrape_interval__", "15s", "__scrape_timeout__", "10s",
		"instance", address, "job", job, "odd", "<&\"\\\n\u2028\xff>",
	), cfg, discovered, model.LabelSet{"group": "g"})
	t.SetMetadataStore(md)
	return t
}

// fakeTargets are two pools with targets on loopback, on other hosts and with invalid
// addresses: healthy, failing and never scraped.
func fakeTargets() stubTargets {
	md := stubMetadata{
		{MetricFamily: "demo_requests", Type: model.MetricTypeCounter, Help: "Requests <served> & \"counted\".\u2028", Unit: ""},
		{MetricFamily: "demo_latency_seconds", Type: model.MetricTypeHistogram, Help: "", Unit: "seconds"},
		{MetricFamily: "odd.name<\"\xff", Type: model.MetricTypeUnknown, Help: "\x00\b\f\\", Unit: "<u>"},
	}
	other := stubMetadata{
		{MetricFamily: "demo_requests", Type: model.MetricTypeCounter, Help: "Another help.", Unit: ""},
		{MetricFamily: "demo_gauge", Type: model.MetricTypeGauge, Help: "h", Unit: "ratio"},
	}
	healthy, failing := target("10.0.0.1:9100", "zeta", nil, md), target("localhost:9490", "zeta", url.Values{"match[]": {"a", "b"}}, other)
	healthy.Report(theStart, 1234567*time.Nanosecond, nil)
	failing.Report(theStart.Truncate(time.Second), time.Nanosecond, errors.New("dial \"x\" <failed> \u2029"))
	broken := target("[::1", "alpha", nil, nil)
	broken.Report(theStart, 0, errors.New("no address"))
	unreachable := target("2001:db8::1", "alpha", nil, other)
	unreachable.Report(theStart.In(time.FixedZone("east", 3600)), 100*time.Second, nil)
	return stubTargets{
		pools: []string{"zeta", "alpha", "<empty>"},
		active: map[string][]*scrape.Target{
			"zeta":    {healthy, failing, target("127.0.0.1:80", "zeta", nil, md), target("127.0.0.1", "zeta", nil, nil), target("[::1]:9490", "zeta", nil, nil)},
			"alpha":   {broken, unreachable, target("[::1]", "alpha", nil, nil)},
			"<empty>": nil,
		},
		dropped: map[string][]*scrape.Target{"zeta": {target("10.0.0.9:1", "zeta", nil, nil)}, "alpha": {target("10.0.0.8:1", "alpha", nil, nil)}},
		counts:  map[string]int{"zeta": 1, "alpha": 12, "<&>": 0},
	}
}

func TestAPI_MetadataEqualsPrometheusExceptOrder(t *testing.T) {
	w := shared(t)
	for _, f := range []url.Values{
		nil, form("metric", "demo_requests"), form("metric", "demo_gauge"), form("metric", "none"), form("limit", "0"), form("limit", "100"), form("limit", "-1"),
		form("limit", "x"), form("limit", "1.5"), form("limit", ""), form("limit", "99999999999999999999"),
		form("limit_per_metric", "x"), form("limit_per_metric", "0"), form("limit_per_metric", "-3"), form("limit_per_metric", "7"),
		form("metric", "demo_gauge", "limit", "1"), form("metric", "demo_gauge", "limit_per_metric", "1"), form("limit", "x", "limit_per_metric", "y"),
	} {
		w.compare(t, request{path: "/metadata", form: f}, unordered)
	}
}

func TestAPI_MetadataIsSortedByName(t *testing.T) {
	w := shared(t)
	first := send(w.pairs["default"].ours, request{path: "/metadata"}.request(t))
	const start = `{"status":"success","data":{"demo_gauge":[`
	if len(first.body) < len(start) || first.body[:len(start)] != start {
		t.Errorf("%s does not begin with the first name", first)
	}
	limited := send(w.pairs["default"].ours, request{path: "/metadata", form: form("limit", "1", "limit_per_metric", "1")}.request(t))
	if want := `{"status":"success","data":{"demo_gauge":[{"type":"gauge","unit":"ratio","help":"h"}]}}`; limited.body != want {
		t.Errorf("got %s, want %s", limited.body, want)
	}
}
