package frontend

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.Parallelism != 14 || o.MaxFreshness != time.Minute || o.Labels.Parallelism != 14 || o.Labels.MaxFreshness != time.Minute || o.Labels.DefaultRange != 24*time.Hour || o.Labels.BytesMax != 128<<20 {
		t.Errorf("%+v", o)
	}
	if o := (Options{Parallelism: 1, MaxFreshness: 2}).withDefaults(); o.Parallelism != 1 || o.MaxFreshness != 2 {
		t.Errorf("given: %+v", o)
	}
	o := Options{Labels: LabelOptions{Parallelism: 1, MaxFreshness: 2, DefaultRange: 3, BytesMax: 4}}.withDefaults()
	if o.Labels.Parallelism != 1 || o.Labels.MaxFreshness != 2 || o.Labels.DefaultRange != 3 || o.Labels.BytesMax != 4 || o.Now == nil || o.Logger == nil || o.Tracer == nil || o.Propagator == nil || o.Bodies == nil {
		t.Errorf("%+v", o.Labels)
	}
}
