package prometheusstore

import (
	"math"
	"testing"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.SelectionsMax != 3 || o.ReadsMax != 8 {
		t.Errorf("%+v", o)
	}
	if o := (Options{SelectionsMax: 1, ReadsMax: 2}).withDefaults(); o.SelectionsMax != 1 || o.ReadsMax != 2 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{SelectionsMax: 20, ReadsMax: -1}).withDefaults(); o.SelectionsMax != 20 || o.ReadsMax != 20 || o.MinTimeMS() != math.MinInt64 {
		t.Errorf("%+v", o)
	}
}
