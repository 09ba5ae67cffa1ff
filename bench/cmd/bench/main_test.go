package main

import (
	"slices"
	"testing"

	"github.com/ferula-io/ferula/bench/goal"
)

func TestAreas_UnmeasuredGoalsAreGoalsOfTheArea(t *testing.T) {
	goals, err := goal.ReadFile("../../goals.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range areas() {
		for _, name := range a.Unmeasured {
			at := slices.IndexFunc(goals, func(g goal.Goal) bool { return g.Name == name })
			if at < 0 || !a.Measures(goals[at].Area()) {
				t.Errorf("area %s names %s, which is no goal of it", a.Name, name)
			}
		}
	}
}
