package main

import (
	"testing"

	"github.com/ferula-io/ferula/bench/goal"
)

func TestAreas_MeasureEveryGoal(t *testing.T) {
	goals, err := goal.ReadFile("../../goals.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range goals {
		found := 0
		for _, a := range areas() {
			if a.Measures(g.Area()) && len(a.Sides) > 0 {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d areas measure %s", found, g.Name)
		}
	}
}
