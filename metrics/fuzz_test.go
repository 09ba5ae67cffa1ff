package metrics

import (
	"strings"
	"testing"
)

// Every valid name can be registered for every type, and the line of the metric begins
// with it.
func FuzzValidName(f *testing.F) {
	for _, seed := range []string{"a", "a{}", `a{b="c"}`, `a{b="\"", c="\\"}`, "a{", "", "a\nb", `a{b="}`, `a{b="",}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if ValidateMetric(name) != nil {
			return
		}
		s := NewSet()
		s.NewCounter(name).Inc()
		if got := text(s); got != name+" 1\n" {
			t.Errorf("got %q", got)
		}
		s = NewSet()
		s.NewSummary(name).Update(1)
		s.GetOrCreateHistogram("other_" + name).Update(1)
		s.GetOrCreatePrometheusHistogram("third_" + name).Update(1)
		if got := text(s); strings.Count(got, "\n") != 7+3+14 {
			t.Errorf("%d lines:\n%s", strings.Count(got, "\n"), got)
		}
	})
}
