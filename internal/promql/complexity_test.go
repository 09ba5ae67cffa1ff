package promql_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/hint"
	ferulapromql "github.com/ferula-io/ferula/internal/promql"
)

// replaced returns n nested calls of label_replace with a replacement.
func replaced(n int, replacement string) string {
	return strings.Repeat("label_replace(", n) + "up" + strings.Repeat(`,"a","`+replacement+`","a","(.*)")`, n)
}

func TestEngine_RefusesWhatNoSampleLimitBounds(t *testing.T) {
	e := newEngine(t, ferulapromql.Options{MaxSamples: 10_000, Flags: hint.Flags{"MaxSamples": "--query.max-samples"}})
	nowhere := storage.QueryableFunc(func(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil })
	for _, tt := range []struct {
		query   string
		instant string // the error, or ""
		long    string // the error of a range query over 1000 s, or ""
	}{
		{query: `max_over_time(up[999999ms:1ms])`, long: "more than 1000000 steps together (--query.max-samples)"},
		{query: `max_over_time(up[1000s:1ms])`, instant: "more than 1000000 steps", long: "more than 1000000 steps"},
		{query: `max_over_time(up[100y:1ms])`, instant: "--query.max-samples", long: "--query.max-samples"},
		{query: `max_over_time(up[500s:1ms]) + max_over_time(up[500s:1ms])`, instant: "more than 1000000", long: "more than 1000000"},
		{query: `max_over_time(max_over_time(up[9s:1s])[9s:1ms])`, long: "more than 1000000"},
		{query: `max_over_time(max_over_time(up[90s:10ms])[10000s:1s])`, instant: "more than 1000000", long: "more than 1000000"},
		{query: `max_over_time(up[999999ms:1ms] @ 0)`},
		{query: `max_over_time(up[694d:])`},
		{query: `max_over_time(up[695d:])`, instant: "use a longer step than 1m0s", long: "more than 1000000"},
		{query: replaced(16, "$1$1")},
		{query: replaced(17, "$1$1"), instant: "label_replace and the calls around it", long: "65536 times longer"},
		{query: replaced(200, "x$1")},
		{query: `label_join(` + replaced(16, "$1$1") + `,"b","-","a","a")`, instant: "label_replace and the calls", long: "65536"},
		{query: `label_replace(up,"a","` + strings.Repeat("$1", 70_000) + `","a","(.*)")`, instant: "65536", long: "65536"},
		{query: `label_replace(up,"b","$1","a","(x*)*(x?){900}y")`},
		{query: `label_replace(up,"b","$1","a","` + strings.Repeat("name|", 10_000) + `x")`},
		{query: `label_replace(label_replace(up,"a","` + strings.Repeat("x", 1<<20) + `","",".*"),"b","$1","a","(x*)*(x?){900}y")`, instant: "instructions, too many for label values of up to 1048576 bytes", long: "instructions"},
		{query: `label_replace(` + replaced(11, "$1$1") + `,"__name__","$1","a","(x*)*(x?){900}y")`, instant: "instructions", long: "instructions"},
		{query: `label_replace(label_join(` + replaced(8, "$1$1") + `,"a","-","a","a","a","a"),"b","$1","a","(x*)*(x?){900}y")`, instant: "instructions", long: "instructions"},
		{query: `label_replace(up,"b","$1","a","(")`},
	} {
		start := time.Unix(1e9, 0)
		q, err := e.NewInstantQuery(context.Background(), nowhere, nil, tt.query, start)
		check := func(kind, want string) {
			t.Helper()
			switch {
			case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s of %.80s: error %v, want %q", kind, tt.query, err, want)
			case err == nil:
				q.Close()
			}
		}
		check("instant query", tt.instant)
		q, err = e.NewRangeQuery(context.Background(), nowhere, nil, tt.query, start, start.Add(1000*time.Second), 10*time.Second)
		check("range query", tt.long)
	}
}
