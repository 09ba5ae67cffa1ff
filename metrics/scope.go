package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// SetOptions apply to all metrics of a set. With the zero value NewSetWithOptions is NewSet.
type SetOptions struct {
	// Prefix of the names of all metrics, such as "app_".
	Prefix string
	// Labels of all metrics. No metric may have a label of the same name.
	Labels map[string]string
}

// NewSetWithOptions returns an empty set whose metrics have the prefix and the labels of the
// options: NewCounter("jobs_total") registers app_jobs_total{env="prod"}. GetOrCreate methods
// and Describe take names without the prefix and the labels. ListMetricNames returns full
// names, and Families names with the prefix. The labels of the set come before the labels of a
// metric. They add no cost to a scrape, and one allocation to a GetOrCreate lookup.
//
// Registered writers must write the prefix and the labels themselves. metrics_vec_overflow_total has the
// labels but not the prefix. NewSetWithOptions panics if the prefix is not a classic name,
// or if a label is not valid or is le, vmrange, quantile or __name__.
func NewSetWithOptions(o SetOptions) *Set {
	s := NewSet()
	if o.Prefix == "" && len(o.Labels) == 0 {
		return s
	}
	if o.Prefix != "" && !exposition.IsClassic(o.Prefix) {
		panic(fmt.Errorf("BUG: invalid prefix %q", o.Prefix))
	}
	c := &scope{prefix: o.Prefix}
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(o.Labels)) {
		if !isValidUTF8Name(name) || name == "__name__" || name == "le" || name == "vmrange" || name == "quantile" {
			panic(fmt.Errorf("BUG: invalid label %q of a set", name))
		}
		value := o.Labels[name]
		if !utf8.ValidString(value) {
			panic(fmt.Errorf("BUG: label %q of a set is not UTF-8", name))
		}
		if !exposition.IsClassic(name) || strings.Contains(name, ":") {
			name = quoted(name)
		}
		c.names = append(c.names, unquoted(name))
		if len(text) > 0 {
			text = append(text, ',')
		}
		text = append(append(text, name...), `="`...)
		text = append(exposition.AppendQuoted(text, value, true), '"')
	}
	c.labels = string(text)
	s.scope = c
	return s
}

// scope is the prefix and the labels of a set.
type scope struct {
	prefix string
	labels string   // escaped, separated by commas
	names  []string // of the labels, escaped, without quotes
}

// apply returns the full name of a metric. The result for an invalid name is a name that no
// metric has.
func (c *scope) apply(name string) string {
	if quoted, ok := strings.CutPrefix(name, `{"`); ok {
		return c.withLabels(`{"` + c.prefix + quoted)
	}
	return c.withLabels(c.prefix + name)
}

// withLabels returns a name with the labels of the set before its own.
func (c *scope) withLabels(name string) string {
	if c.labels == "" {
		return name
	}
	family := exposition.Family(name)
	if strings.HasPrefix(name, "{") {
		rest := name[min(len(name), 1+len(family)):]
		return "{" + family + "," + c.labels + rest
	}
	own := strings.TrimSuffix(strings.TrimPrefix(name[len(family):], "{"), "}")
	if own != "" {
		own = "," + own
	}
	return family + "{" + c.labels + own + "}"
}

// unquoted returns a name without the quotes it may have.
func unquoted(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, `"`), `"`)
}

// mustLack panics if label, which may be in quotes, is a label of the set.
func (c *scope) mustLack(metric, label string) {
	if slices.Contains(c.names, unquoted(label)) {
		panic(fmt.Errorf("BUG: metric %q has the label %q, as its set has", metric, label))
	}
}
