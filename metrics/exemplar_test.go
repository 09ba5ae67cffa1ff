package metrics

import (
	"strings"
	"testing"
)

// A label name of OpenMetrics has no colon, and a parser refuses the whole response because of one.
func TestCounter_ExemplarWithAnInvalidLabelNameIsDropped(t *testing.T) {
	for _, name := range []string{"trace:id", "trace id", "1st", "", "träce"} {
		s := NewSet()
		s.NewCounter("requests_total").AddWithExemplar(3, name, "abc")
		if _, page := scraped(s, acceptOpenMetrics); strings.Contains(page, "abc") || !strings.Contains(page, "requests_total 3.0\n") {
			t.Errorf("label name %q: the exemplar was kept, or the counter has no value:\n%s", name, page)
		}
	}
}
