package httpapi

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/scrape"
)

func (a *API) scrapePools(*http.Request) (response, *apiError) {
	pools := a.opts.Targets.ScrapePools()
	slices.Sort(pools)
	return response{write: func(s *stream) {
		s.raw(`{"scrapePools":`)
		s.strings(pools)
		s.raw("}")
	}}, nil
}

// targets returns the active targets and those dropped by relabelling, sorted by pool.
func (a *API) targets(r *http.Request) (response, *apiError) {
	pool := r.URL.Query().Get("scrapePool")
	state := strings.ToLower(r.URL.Query().Get("state"))
	all := state == "" || state == "any"
	var active, dropped []pooledTarget
	var droppedCounts map[string]int
	if all || state == "active" {
		active = targetsOfPools(a.opts.Targets.TargetsActive(), pool)
	}
	if all || state == "dropped" {
		dropped = targetsOfPools(a.opts.Targets.TargetsDropped(), pool)
		droppedCounts = a.opts.Targets.TargetsDroppedCounts()
	}
	return response{write: func(s *stream) {
		b := labels.NewBuilder(labels.EmptyLabels())
		s.raw(`{"activeTargets":[`)
		for i, t := range active {
			s.comma(i)
			a.activeTarget(s, t, b)
			s.flushIfFull()
		}
		s.raw(`],"droppedTargets":[`)
		for i, t := range dropped {
			s.comma(i)
			s.raw(`{"discoveredLabels":`)
			s.labels(t.DiscoveredLabels(b))
			s.field(`,"scrapePool":`, t.pool)
			s.raw("}")
			s.flushIfFull()
		}
		s.raw(`],"droppedTargetCounts":`)
		s.counts(droppedCounts)
		s.raw("}")
	}}, nil
}

type pooledTarget struct {
	*scrape.Target
	pool string
}

// targetsOfPools returns targets sorted by pool. If only is not empty, it returns the targets of that pool.
func targetsOfPools(targets map[string][]*scrape.Target, only string) []pooledTarget {
	pools := make([]string, 0, len(targets))
	for pool := range targets {
		if only == "" || pool == only {
			pools = append(pools, pool)
		}
	}
	slices.Sort(pools)
	var list []pooledTarget
	for _, pool := range pools {
		for _, t := range targets[pool] {
			list = append(list, pooledTarget{t, pool})
		}
	}
	return list
}

func (a *API) activeTarget(s *stream, t pooledTarget, b *labels.Builder) {
	s.raw(`{"discoveredLabels":`)
	s.labels(t.DiscoveredLabels(b))
	s.raw(`,"labels":`)
	s.labels(t.Labels(b))
	s.field(`,"scrapePool":`, t.pool)
	s.field(`,"scrapeUrl":`, t.URL().String())
	global, err := a.globalURL(t.URL())
	s.field(`,"globalUrl":`, global.String())
	last := ""
	if lastErr := t.LastError(); lastErr != nil {
		last = lastErr.Error()
	}
	if err != nil {
		last = fmt.Sprintf("%s: %v", last, err)
	}
	s.field(`,"lastError":`, last)
	s.raw(`,"lastScrape":`)
	s.rfc3339(t.LastScrape())
	s.raw(`,"lastScrapeDuration":`)
	s.number(t.LastScrapeDuration().Seconds())
	s.field(`,"health":`, string(t.Health()))
	s.field(`,"scrapeInterval":`, t.GetValue(model.ScrapeIntervalLabel))
	s.field(`,"scrapeTimeout":`, t.GetValue(model.ScrapeTimeoutLabel))
	s.raw("}")
}

// globalURL returns the URL by which users reach a target. A target on loopback gets the
// host of ExternalURL. The target that is this server also gets the scheme and the port of
// ExternalURL.
func (a *API) globalURL(u *url.URL) (*url.URL, error) {
	host, port, err := splitHostPort(u.Host)
	if err != nil || a.opts.ExternalURL == nil {
		return u, err
	}
	if host != "127.0.0.1" && host != "localhost" && host != "::1" {
		return u, nil
	}
	_, ownPort, err := net.SplitHostPort(a.opts.ListenAddress)
	if err != nil {
		return u, err
	}
	if port == ownPort {
		u.Scheme, u.Host = a.opts.ExternalURL.Scheme, a.opts.ExternalURL.Host
		return u, nil
	}
	externalHost, _, err := splitHostPort(a.opts.ExternalURL.Host)
	if err != nil {
		return u, err
	}
	u.Host = externalHost
	if port != "" {
		u.Host = net.JoinHostPort(externalHost, port)
	}
	return u, nil
}

// splitHostPort is net.SplitHostPort, but the port is optional.
func splitHostPort(hostport string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(hostport)
	if err != nil && strings.HasSuffix(err.Error(), "missing port in address") {
		if host, _, withPort := net.SplitHostPort(hostport + ":80"); withPort == nil {
			return host, "", nil
		}
	}
	return host, port, err
}

// counts appends an object of integers with sorted keys; null for a nil map.
func (s *stream) counts(counts map[string]int) {
	if counts == nil {
		s.raw("null")
		return
	}
	s.raw("{")
	for i, key := range sortedKeys(counts) {
		s.comma(i)
		s.str(key)
		s.raw(":")
		s.integer(int64(counts[key]))
	}
	s.raw("}")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// targetMetadata returns metric metadata by target.
func (a *API) targetMetadata(r *http.Request) (response, *apiError) {
	limit, apiErr := optionalInt(r, "limit")
	if apiErr != nil {
		return response{}, apiErr
	}
	var matchers []*labels.Matcher
	if text := r.FormValue("match_target"); text != "" {
		var err error
		if matchers, err = a.opts.Parser.ParseMetricSelector(text); err != nil {
			return response{}, invalidParameter("match_target", err)
		}
	}
	metric := r.FormValue("metric")
	active := targetsOfPools(a.opts.Targets.TargetsActive(), "")
	return response{write: func(s *stream) {
		b := labels.NewBuilder(labels.EmptyLabels())
		s.raw("[")
		n := 0
		for _, t := range active {
			if limit >= 0 && n >= limit {
				break
			}
			ls := t.Labels(b)
			if !matchesAll(ls, matchers) {
				continue
			}
			n = s.metadataOf(t.Target, ls, metric, n)
		}
		s.raw("]")
	}}, nil
}

// metadataOf appends the metadata of one target after n elements and returns the new
// number of elements.
func (s *stream) metadataOf(t *scrape.Target, ls labels.Labels, metric string, n int) int {
	if metric != "" {
		if md, ok := t.GetMetadata(metric); ok {
			s.metricMetadata(n, ls, "", md)
			n++
		}
		return n
	}
	list := t.ListMetadata()
	slices.SortFunc(list, func(x, y scrape.MetricMetadata) int { return cmp.Compare(x.MetricFamily, y.MetricFamily) })
	for _, md := range list {
		s.metricMetadata(n, ls, md.MetricFamily, md)
		n++
	}
	return n
}

func (s *stream) metricMetadata(i int, target labels.Labels, family string, md scrape.MetricMetadata) {
	s.comma(i)
	s.raw(`{"target":`)
	s.labels(target)
	if family != "" {
		s.field(`,"metric":`, family)
	}
	s.field(`,"type":`, string(md.Type))
	s.field(`,"help":`, md.Help)
	s.field(`,"unit":`, md.Unit)
	s.raw("}")
	s.flushIfFull()
}

func matchesAll(ls labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(ls.Get(m.Name)) {
			return false
		}
	}
	return true
}

// metricMetadata returns the metadata of all targets, sorted by metric. Prometheus returns them in the random order
// of a map.
func (a *API) metricMetadata(r *http.Request) (response, *apiError) {
	limit, apiErr := optionalInt(r, "limit")
	if apiErr != nil {
		return response{}, apiErr
	}
	perMetric, apiErr := optionalInt(r, "limit_per_metric")
	if apiErr != nil {
		return response{}, apiErr
	}
	families := a.families(r.FormValue("metric"), perMetric)
	return response{write: func(s *stream) { s.families(families, limit) }}, nil
}

// families appends at most limit families; all of them if limit is negative.
func (s *stream) families(families map[string][]metadata.Metadata, limit int) {
	names := sortedKeys(families)
	if limit >= 0 && len(names) > limit {
		names = names[:limit]
	}
	s.raw("{")
	for i, name := range names {
		s.comma(i)
		s.str(name)
		s.raw(":[")
		for j, md := range families[name] {
			s.comma(j)
			s.field(`{"type":`, string(md.Type))
			s.field(`,"unit":`, md.Unit)
			s.field(`,"help":`, md.Help)
			s.raw("}")
		}
		s.raw("]")
		s.flushIfFull()
	}
	s.raw("}")
}

func (a *API) families(metric string, perMetric int) map[string][]metadata.Metadata {
	families := map[string][]metadata.Metadata{}
	add := func(md scrape.MetricMetadata) {
		known := families[md.MetricFamily]
		m := metadata.Metadata{Type: md.Type, Unit: md.Unit, Help: md.Help}
		if slices.Contains(known, m) || (perMetric > 0 && len(known) >= perMetric) {
			return
		}
		families[md.MetricFamily] = append(known, m)
	}
	for _, t := range targetsOfPools(a.opts.Targets.TargetsActive(), "") {
		if metric == "" {
			for _, md := range t.ListMetadata() {
				add(md)
			}
		} else if md, ok := t.GetMetadata(metric); ok {
			add(md)
		}
	}
	return families
}
