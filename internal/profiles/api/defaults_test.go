package api

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.BodyMaxBytes != 64<<20 || o.PushesMax != 16 || o.NodesDefault != 8192 || o.NodesMax != 1<<20 || o.SelectorBytes != 64<<10 || o.PointsMax != 11_000 || o.QueryTimeout != 2*time.Minute {
		t.Errorf("%+v", o)
	}
	if o := (Options{BodyMaxBytes: 1, PushesMax: 2, NodesDefault: 3, NodesMax: 4, SelectorBytes: 5, PointsMax: 6, QueryTimeout: 7}).withDefaults(); o.BodyMaxBytes != 1 || o.PushesMax != 2 || o.NodesDefault != 3 || o.NodesMax != 4 || o.SelectorBytes != 5 || o.PointsMax != 6 || o.QueryTimeout != 7 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{}).withDefaults(); o.Tenant == nil || o.Bodies == nil || o.Code == nil {
		t.Errorf("%+v", o)
	}
}
