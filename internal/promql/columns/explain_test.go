package columns_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/promql/columns"
)

// planText returns a plan in one line.
func planText(p columns.Plan) string {
	var operands []string
	for _, o := range p.Operands {
		operands = append(operands, planText(o))
	}
	if len(operands) == 0 {
		return p.Operator
	}
	return p.Operator + " {" + strings.Join(operands, "; ") + "}"
}

// planOf returns the plan of a query that did not run.
func planOf(t *testing.T, r request) columns.Plan {
	t.Helper()
	_, engine := newEngines(1_000_000)
	q, err := r.open(engine, storage.QueryableFunc(func(int64, int64) (storage.Querier, error) {
		t.Errorf("%s was executed", r)
		return storage.NoopQuerier(), nil
	}))
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	defer q.Close()
	return columns.PlanOf(q)
}

func TestPlanOf_IsTheTreeOfOperators(t *testing.T) {
	for query, want := range map[string]string{
		`up`:                                             `[vectorSelector] up`,
		`sum by (job) (rate(x{a="b"}[5m]))`:              `[aggregate] sum by (job) {[matrixSelector] rate(x{a="b"}[5m])}`,
		`-x offset 5m > bool 1`:                          `[vectorScalarBinary] > bool {[negate] {[vectorSelector] x offset 5m}; [number] 1}`,
		`2 * x`:                                          `[vectorScalarBinary] * {[number] 2; [vectorSelector] x}`,
		`a * on (i) group_left (x) b`:                    `[vectorBinary] * on (i) group_left (x) {[vectorSelector] a; [vectorSelector] b}`,
		`a / ignoring (i) group_right () b`:              `[vectorBinary] / ignoring (i) group_right () {[vectorSelector] a; [vectorSelector] b}`,
		`sum by ("a.b", c) (x)`:                          `[aggregate] sum by ("a.b", c) {[vectorSelector] x}`,
		`a * on ("i.j") group_left ("x y") b`:            `[vectorBinary] * on ("i.j") group_left ("x y") {[vectorSelector] a; [vectorSelector] b}`,
		`count(  predict_linear(x [1h:1m]  @ 9, 1)) + y`: `[vectorBinary] + {[aggregate] count {[prometheus: predict_linear_of_subquery_at] predict_linear(x [1h:1m]  @ 9, 1)}; [vectorSelector] y}`,
		`a and b`:                                        `[vectorBinary] and {[vectorSelector] a; [vectorSelector] b}`,
		`topk without (i) (3, x)`:                        `[aggregate] topk without (i) {[number] 3; [vectorSelector] x}`,
		`quantile(0.9, abs(x))`:                          `[aggregate] quantile {[number] 0.9; [function] abs {[vectorSelector] x}}`,
		`clamp(x, 1, time())`:                            `[function] clamp {[vectorSelector] x; [number] 1; [function] time}`,
		`count_values("v", x)`:                           `[aggregate] count_values as "v" {[vectorSelector] x}`,
		`label_replace(x, "a", "$1", "b", ".*")`:         `[function] label_replace {[vectorSelector] x}`,
		`max_over_time(x[1h:1m] offset -3m)`:             `[subquery] max_over_time[1h:1m] offset -3m {[vectorSelector] x}`,
		`quantile_over_time(0.5, x[5m])`:                 `[matrixSelector] quantile_over_time(x[5m]) {[number] 0.5}`,
		`absent_over_time(x[5m])`:                        `[matrixSelector] absent_over_time(x[5m])`,
		`sort_by_label(x, "a")`:                          `[function] sort_by_label {[vectorSelector] x}`,
		`histogram_quantile(0.9, x)`:                     `[function] histogram_quantile {[number] 0.9; [vectorSelector] x}`,
		`scalar(timestamp(x)) + pi()`:                    `[scalarBinary] + {[function] scalar {[function] timestamp {[vectorSelector] x}}; [stepInvariant] {[function] pi}}`,
		`vector(1)`:                                      `[stepInvariant] {[function] vector {[number] 1}}`,
		`sum(abs(x)) / count(abs(x))`:                    `[vectorBinary] / {[fusedAggregate] sum {[function] abs {[vectorSelector] x}}; [fusedAggregate] count {[function] abs {[vectorSelector] x}}}`,
		`x - x`:                                          `[vectorBinary] - {[shared] {[vectorSelector] x}; [shared] {[vectorSelector] x}}`,
		`"text"`:                                         `[string] "text"`,
		`x[5m]`:                                          `[prometheus: type_matrix] x[5m]`,
		`rate(x[10m] smoothed) + y smoothed`:             `[vectorBinary] + {[matrixSelector] rate(x[10m] smoothed); [vectorSelector] y smoothed}`,
		`start_timestamp(info(x, {a="b"}))`:              `[function] start_timestamp {[function] info {[vectorSelector] x}}`,
	} {
		if got := planText(planOf(t, request{query: query, start: beginMS})); got != want {
			t.Errorf("%s is\n%s, want\n%s", query, got, want)
		}
	}
}

func TestPlanOf_DescribesEveryOperator(t *testing.T) {
	for _, query := range slices.Concat(known, histograms, named, partly, unknown) {
		for _, step := range []time.Duration{0, time.Minute} {
			if step > 0 && query == `c_total[5m]` || strings.Contains(query, ") @") {
				continue // not valid
			}
			plan := planText(planOf(t, request{query: query, start: beginMS, end: beginMS + hourMS, step: step}))
			if strings.Contains(plan, "columns.") || strings.Contains(plan, "[]") || !strings.HasPrefix(plan, "[") {
				t.Errorf("%s is %s", query, plan)
			}
		}
	}
}

func TestPlanOf_AfterTheQueryNamesTheEngineThatEvaluatedIt(t *testing.T) {
	store := newWorld(t, false)
	_, engine := newEngines(50_000_000)
	for query, want := range map[string]string{
		`sum(c_total)`:                          `[aggregate] sum {[vectorSelector] c_total}`,
		`max_over_time(g[61s:100s] offset 30s)`: `[prometheus: subquery that begins where the query does]`,
	} {
		q, err := request{query: query, start: beginMS + 4*hourMS}.open(engine, store)
		if err != nil {
			t.Fatal(err)
		}
		q.Exec(context.Background())
		if got := planText(columns.PlanOf(q)); !strings.HasPrefix(got, want) {
			t.Errorf("%s was %s, want %s", query, got, want)
		}
		q.Close()
	}
}

// Each level of an expression is described without its operands, so that a plan is not many times as long as the query.
func TestPlanOf_DeepExpressionIsShort(t *testing.T) {
	query := strings.Repeat("abs(", 1000) + `sum(rate(g{i=~"` + strings.Repeat("x", 64<<10) + `"}[5m] smoothed))` + strings.Repeat(")", 1000)
	if n := len(planText(planOf(t, request{query: query, start: beginMS}))); n > 2*len(query)+100_000 {
		t.Errorf("%d bytes for a query of %d", n, len(query))
	}
}
