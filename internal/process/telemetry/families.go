package telemetry

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Family is the metadata of a metric family of a process.
type Family struct {
	Name   string
	Type   string // as in TYPE lines; "" if unknown: a family of a Prometheus package that has no series yet
	Help   string
	Labels []string // names, sorted
}

// Register implements prometheus.Registerer. It remembers the families of c.
func (reg *Registry) Register(c prometheus.Collector) error {
	if err := reg.Registry.Register(c); err != nil {
		return err // as it is: callers look for AlreadyRegisteredError
	}
	descs := make(chan *prometheus.Desc)
	go func() { c.Describe(descs); close(descs) }()
	for desc := range descs {
		if f, ok := familyOf(desc); ok {
			f.Type = typeOf(c)
			reg.mu.Lock()
			reg.described[f.Name] = f
			reg.mu.Unlock()
		}
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (reg *Registry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			panic(err) // as every Registerer does
		}
	}
}

// Families returns the families that were registered until now, sorted by name. It includes
// families of Prometheus' registry without series, and vectors of Own without series. It leaves
// out families that a function writes, and the process_* families of the operating system.
func (reg *Registry) Families() []Family {
	all := map[string]Family{}
	reg.mu.Lock()
	for name, f := range reg.described {
		all[name] = f
	}
	reg.mu.Unlock()
	gathered, _ := reg.Gather() // families of a failed collector are missing
	for _, g := range gathered {
		f := all[g.GetName()]
		f.Name, f.Help, f.Type = g.GetName(), g.GetHelp(), strings.ToLower(g.GetType().String())
		for _, m := range g.GetMetric() {
			for _, l := range m.GetLabel() {
				f.Labels = append(f.Labels, l.GetName())
			}
		}
		all[f.Name] = f
	}
	for _, f := range reg.Own.Families() {
		all[f.Name] = Family{Name: f.Name, Type: f.Type, Help: f.Help}
	}
	for _, f := range reg.Own.Vectors() {
		all[f.Name] = Family{f.Name, f.Type, f.Help, f.Labels}
	}
	var families []Family
	for _, f := range all {
		f.Labels = slices.Clone(f.Labels)
		slices.Sort(f.Labels)
		f.Labels = slices.Compact(f.Labels)
		families = append(families, f)
	}
	slices.SortFunc(families, func(a, b Family) int { return strings.Compare(a.Name, b.Name) })
	return families
}

// descText parses the text of a prometheus.Desc, which has no accessors.
var descText = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), (?:unit: "(?:[^"\\]|\\.)*", )?constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

var constLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="`)

func familyOf(desc *prometheus.Desc) (f Family, ok bool) {
	m := descText.FindStringSubmatch(desc.String())
	if m == nil {
		return f, false
	}
	name, err := strconv.Unquote(m[1])
	if err != nil {
		return f, false
	}
	help, err := strconv.Unquote(m[2])
	if err != nil {
		return f, false
	}
	f = Family{Name: name, Help: help}
	for _, l := range constLabel.FindAllStringSubmatch(m[3], -1) {
		f.Labels = append(f.Labels, l[1])
	}
	for l := range strings.SplitSeq(m[4], ",") {
		if l != "" {
			f.Labels = append(f.Labels, strings.TrimPrefix(strings.TrimSuffix(l, ")"), "c("))
		}
	}
	return f, true
}

func typeOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec:
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	case *prometheus.SummaryVec:
		return "summary"
	}
	return ""
}
