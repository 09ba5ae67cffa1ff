package promql_test

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var updateFlag = flag.Bool("update", false, "write docs/promql-engine.md")

// The minimum share of evaluations that the engine of columns must do itself, in percent:
// with the default features, and with the features of the scripts.
const (
	leastShare    = 90
	leastShareAll = 45
)

// TestEngine_PassesPrometheusScripts runs the scripts with which Prometheus tests its
// engine.
func TestEngine_PassesPrometheusScripts(t *testing.T) {
	for wire, open := range wires {
		t.Run(wire, func(t *testing.T) {
			if testing.Short() && wire != "TSDB" && wire != "all features" {
				t.Skip("takes half a minute")
			}
			j := newJudge(t, wire == "all features")
			promqltest.RunBuiltinTestsWithStorage(t, j, open)
			least := float64(leastShare)
			if wire == "all features" {
				least = leastShareAll
			}
			t.Logf("%.1f %% of %d evaluations without Prometheus' engine", j.share(), j.evaluations)
			if share := j.share(); share < least || j.evaluations < 10_000 {
				t.Errorf("%.1f %% of %d evaluations by columns, want %g", share, j.evaluations, least)
			}
			if wire == "TSDB" && !t.Failed() {
				checkDocument(t, j.document())
			}
		})
	}
}

const documentPath = "../../docs/promql-engine.md"

// checkDocument checks that the list of queries that Prometheus' engine evaluates is
// current.
func checkDocument(t *testing.T, want string) {
	t.Helper()
	if *updateFlag {
		if err := os.WriteFile(documentPath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current: run go test ./test/promql -run Scripts/TSDB -update", documentPath)
	}
}

const documentHead = `# What ferula's PromQL engine leaves to Prometheus' engine

` + "`go test ./test/promql -update`" + ` writes this list.
It runs Prometheus' own scripts (` + "`promql/promqltest/testdata`" + `) over the database, its samples, StoreAPI and remote read, and compares both engines bit by bit.
[The reasons](ops/query-engine.md#what-prometheus-engine-evaluates).

`

// queriesShown is the number of queries that are listed for one reason.
const queriesShown = 30

// byOrder is a reason that depends on the order of the series. The scripts' runner loads
// them in random order.
const byOrder = "series of which some have a type or a unit"

// generatedAt matches the modifiers that the scripts' runner adds to queries.
var generatedAt = regexp.MustCompile(` @ -?\d+\.\d{3}\b`)

// document returns the list of queries that Prometheus' engine evaluated, as Markdown.
func (j *judge) document() string {
	var b strings.Builder
	b.WriteString(documentHead)
	// Whole percents: the share differs between runs by a few hundredths of a percent.
	fmt.Fprintf(&b, "ferula's engine does more than %.0f %% of the scripts' evaluations, Prometheus' engine the others:\n", math.Floor(j.share()))
	for _, reason := range slices.Sorted(maps.Keys(j.reasons)) {
		if reason == byOrder {
			continue
		}
		queries := slices.Sorted(maps.Keys(j.reasons[reason]))
		if written := slices.DeleteFunc(slices.Clone(queries), generatedAt.MatchString); len(written) > 0 {
			queries = written
		}
		fmt.Fprintf(&b, "\n## %s\n\n%d queries", reason, len(queries))
		if len(queries) > queriesShown {
			fmt.Fprintf(&b, ", of which %d", queriesShown)
			queries = queries[:queriesShown]
		}
		b.WriteString(":\n\n```\n")
		for _, query := range queries {
			b.WriteString(strings.Join(strings.Fields(query), " ") + "\n")
		}
		b.WriteString("```\n")
	}
	return b.String()
}
