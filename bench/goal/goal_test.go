package goal

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestRead_ParsesGoals(t *testing.T) {
	goals, err := Read(strings.NewReader("# name\top\n\napi/y\t<=\t0.5\tratio\tCPU of a, over b\njson/x\t>=\t10000\tcount\t\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Goal{{"api/y", "<=", 0.5, "ratio", "CPU of a, over b"}, {"json/x", ">=", 10000, "count", ""}}
	if len(goals) != len(want) {
		t.Fatalf("got %d goals, want %d", len(goals), len(want))
	}
	for i := range want {
		if goals[i] != want[i] {
			t.Errorf("goal %d: got %+v, want %+v", i, goals[i], want[i])
		}
	}
	if of := Of(goals, "json"); len(of) != 1 || of[0].Name != "json/x" || of[0].Area() != "json" {
		t.Errorf("goals of json: %+v", of)
	}
}

func TestReadFile_CommittedGoalsAreWellFormed(t *testing.T) {
	goals, err := ReadFile("../goals.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if len(Of(goals, "api")) == 0 || len(Of(goals, "json")) == 0 {
		t.Errorf("api has %d goals and json %d", len(Of(goals, "api")), len(Of(goals, "json")))
	}
}

func TestRead_MalformedLineIsAnError(t *testing.T) {
	for _, line := range []string{
		"a/b\t<=\t1\tratio", "a/b\t<\t1\tratio\thow", "a/b\t<=\tone\tratio\thow", "a/b\t<=\tNaN\tratio\thow",
		"ab\t<=\t1\tratio\thow", "/b\t<=\t1\tratio\thow", "a/b\t<=\t1\tratio\thow\na/b\t<=\t2\tratio\thow",
	} {
		if _, err := Read(strings.NewReader(line)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: got %v, want ErrMalformed", line, err)
		}
	}
}

func TestGoal_Verdict(t *testing.T) {
	most, least := Goal{Name: "a/b", Op: "<=", Limit: 0.5}, Goal{Name: "a/c", Op: ">=", Limit: 2}
	for _, c := range []struct {
		goal     Goal
		measured float64
		line     string
	}{
		{most, 0.5, "goal a/b 0.5 <= 0.5 ok"},
		{most, 0.50001, "goal a/b 0.50001 <= 0.5 SHORT"},
		{most, 0.12345, "goal a/b 0.1235 <= 0.5 ok"},
		{most, math.NaN(), "goal a/b missing <= 0.5 SHORT"},
		{most, math.Inf(1), "goal a/b +Inf <= 0.5 SHORT"},
		{least, 2, "goal a/c 2 >= 2 ok"},
		{least, 1, "goal a/c 1 >= 2 SHORT"},
		{least, 12345.6, "goal a/c 12346 >= 2 ok"},
	} {
		if got := c.goal.Line(c.measured); got != c.line {
			t.Errorf("got %q, want %q", got, c.line)
		}
	}
}
