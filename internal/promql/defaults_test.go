package promql

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.MaxSamples != 50_000_000 || o.Timeout != 2*time.Minute || o.MaxConcurrency != 20 || o.LookbackDelta != 5*time.Minute {
		t.Errorf("%+v", o)
	}
	if o := (Options{MaxSamples: 1, Timeout: 2, MaxConcurrency: 3, LookbackDelta: 4}).withDefaults(); o.MaxSamples != 1 || o.Timeout != 2 || o.MaxConcurrency != 3 || o.LookbackDelta != 4 {
		t.Errorf("given: %+v", o)
	}
}
