package bucket

import (
	"testing"
	"time"
)

func TestShipOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (ShipOptions{}).withDefaults(); o.Interval != 30*time.Second || o.RetryMin != 2*time.Second || o.RetryMax != 2*time.Minute || o.Stall != 5*time.Minute || o.Concurrency != 1 {
		t.Errorf("%+v", o)
	}
	if o := (ShipOptions{Interval: 1, RetryMin: 2, RetryMax: 3, Stall: 4, Concurrency: 5}).withDefaults(); o.Interval != 1 || o.RetryMin != 2 || o.RetryMax != 3 || o.Stall != 4 || o.Concurrency != 5 {
		t.Errorf("given: %+v", o)
	}
	if o := (ShipOptions{}).withDefaults(); o.StateFile != "thanos.shipper.json" || o.Source != "sidecar" || o.Now == nil {
		t.Errorf("%+v", o)
	}
	if o := (ShipOptions{StateFile: "a", Source: "b"}).withDefaults(); o.StateFile != "a" || o.Source != "b" {
		t.Errorf("%+v", o)
	}
}
