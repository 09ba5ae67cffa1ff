package query

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.PointsMax != 2_000_000 || o.NodesMax != 4_000_000 || o.IDsMax != 10_000 || o.ConcurrencyMax != 20 || o.Timeout != 2*time.Minute {
		t.Errorf("%+v", o)
	}
	if o := (Options{PointsMax: 1, NodesMax: 2, IDsMax: 3, ConcurrencyMax: 4, Timeout: 5}).withDefaults(); o.PointsMax != 1 || o.NodesMax != 2 || o.IDsMax != 3 || o.ConcurrencyMax != 4 || o.Timeout != 5 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{PointsMax: -1, NodesMax: -1, IDsMax: -1, ConcurrencyMax: -1, Timeout: -1}).withDefaults(); o.PointsMax != 2_000_000 || o.NodesMax != 4_000_000 || o.IDsMax != 10_000 || o.ConcurrencyMax != 20 || o.Timeout != 2*time.Minute || o.Logger == nil || o.Metrics == nil {
		t.Errorf("%+v", o)
	}
}
