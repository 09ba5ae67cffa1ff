package rules

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.MaxConcurrentEvals != 4 || o.QueueCapacity != 10_000 || o.BatchSize != 256 || o.StopTimeout != 30*time.Second || o.DiscoveryInterval != 5*time.Second {
		t.Errorf("%+v", o)
	}
	if o := (Options{MaxConcurrentEvals: 1, QueueCapacity: 2, BatchSize: 3, StopTimeout: 4, DiscoveryInterval: 5}).withDefaults(); o.MaxConcurrentEvals != 1 || o.QueueCapacity != 2 || o.BatchSize != 3 || o.StopTimeout != 4 || o.DiscoveryInterval != 5 {
		t.Errorf("given: %+v", o)
	}
}
