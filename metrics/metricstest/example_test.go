package metricstest_test

import (
	"fmt"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/metricstest"
)

// printer is a TB; a test passes its *testing.T.
type printer struct{}

func (printer) Helper()                           {}
func (printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func ExampleTB() {
	set := metrics.NewSet()
	set.NewCounterVec("jobs_total", "Jobs.", "kind").With("mail").Inc()
	metricstest.Expect(printer{}, set, map[string]float64{`jobs_total{kind="mail"}`: 1})
	fmt.Println("nothing reported")
	// Output: nothing reported
}

func ExampleProblem() {
	set := metrics.NewSet()
	set.NewCounterVec("jobs", "Jobs done.", "kind").With("mail").Inc()
	for _, p := range metricstest.Lint(set) {
		fmt.Println(p.Name)
	}
	// Output: jobs
}
