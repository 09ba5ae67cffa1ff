package compare

import (
	"regexp"
	"slices"
)

// known is a difference with a documented reason. The zero of a condition is no condition.
type known struct {
	programs []program // one of them is on one side, and another program on the other side
	kinds    []Kind
	expr     *regexp.Regexp // of the query
	ulpMax   uint64         // of values
	text     *regexp.Regexp // of one of the sides
	own      bool           // each server scrapes for itself
	reason   string
}

var (
	extrapolated = regexp.MustCompile(`\b(rate|increase|delta)\s*\(`)
	summed       = regexp.MustCompile(`\b(sum|avg|stddev|stdvar)\b`)
	stores       = regexp.MustCompile(`(?i)store|endpoint|proxy`)
	numeric      = []Kind{KindValue, KindSample, KindSeries, KindHistogram}
)

// reasons are all documented differences; the first that fits a difference is its reason. Documents that name a
// difference: docs/http.md, docs/migrate/thanos.md, docs/ops/query-frontend.md.
var reasons = []known{
	{own: true, kinds: numeric, reason: "each server scrapes for itself, so their samples differ: compare servers of " +
		"the same samples, for example by remote_write from one to the other (docs/ops/compare.md)"},
	{programs: []program{victoria}, kinds: numeric, expr: extrapolated, reason: "VictoriaMetrics does not extrapolate " +
		"rate, increase and delta to the borders of the range, and counts the last sample before it (MetricsQL)"},
	{programs: []program{victoria}, kinds: numeric[1:3], reason: "VictoriaMetrics looks for samples " +
		"within an interval that it derives from the samples, not within 5m, and leaves out NaN (MetricsQL)"},
	{programs: []program{victoria}, kinds: []Kind{KindWarning, KindInfo}, reason: "VictoriaMetrics has no annotations"},
	{programs: []program{thanos}, kinds: []Kind{KindValue}, expr: extrapolated, reason: "Thanos adjusts counters for " +
		"resets before it extrapolates (docs/migrate/thanos.md)"},
	{programs: []program{thanos, ferula}, kinds: []Kind{KindWarning}, text: stores, reason: "a store is missing: the " +
		"response is partial (docs/ops/query.md)"},
	{kinds: numeric[:1], expr: summed, ulpMax: 64, reason: "the last digits of an aggregation depend on the order of " +
		"its series, which differs between storages, and on splitting (docs/ops/query-frontend.md)"},
	{programs: []program{ferula}, kinds: []Kind{KindStatus, KindErrorType, KindError},
		text:   regexp.MustCompile(`less than 1ms|divide by zero|timed out|timeout|^50[03]$|nested deeper|form values`),
		reason: "ferula has another status for this error, or refuses the request (docs/http.md)"},
}

// reason returns the documented reason of a difference, "" if there is none.
func (r *runner) reason(q *Result, d *Difference) string {
	left, right := r.report.Left.program, r.report.Right.program
	for _, k := range reasons {
		in := len(k.programs) == 0 ||
			left != right && (slices.Contains(k.programs, left) || slices.Contains(k.programs, right))
		if in && (!k.own || r.report.OwnScrapes) && slices.Contains(k.kinds, d.Kind) &&
			(k.expr == nil || k.expr.MatchString(q.Expr)) && (k.ulpMax == 0 || d.ULP > 0 && d.ULP <= k.ulpMax) &&
			(k.text == nil || k.text.MatchString(d.Left) || k.text.MatchString(d.Right)) {
			return k.reason
		}
	}
	return ""
}
