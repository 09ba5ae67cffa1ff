package fanout

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.SelectsMax != 4 || o.BytesMax != 4<<30 || o.TotalWait != 10*time.Second || o.SortBytesMax != 256<<20 {
		t.Errorf("%+v", o)
	}
	if o := (Options{SelectsMax: 1, BytesMax: 2, TotalWait: 3, SortBytesMax: 4}).withDefaults(); o.SelectsMax != 1 || o.BytesMax != 2 || o.TotalWait != 3 || o.SortBytesMax != 4 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{SelectsMax: -1, TotalWait: -1}).withDefaults(); o.SelectsMax != 4 || o.TotalWait != 10*time.Second {
		t.Errorf("%+v", o)
	}
	e := EndpointsOptions{}.withDefaults()
	if e.ReloadInterval != 5*time.Minute || e.DNSInterval != 30*time.Second || e.InfoInterval != 5*time.Second || e.InfoTimeout != 5*time.Second || e.UnhealthyTimeout != 5*time.Minute || e.Resolver == nil || e.Now == nil || e.Logger == nil || len(e.ConnectionLabels) != 2 {
		t.Errorf("%+v", e)
	}
	e = EndpointsOptions{ReloadInterval: 1, DNSInterval: 2, InfoInterval: 3, InfoTimeout: 4, UnhealthyTimeout: 5, ConnectionLabels: []string{}}.withDefaults()
	if e.ReloadInterval != 1 || e.DNSInterval != 2 || e.InfoInterval != 3 || e.InfoTimeout != 4 || e.UnhealthyTimeout != 5 || len(e.ConnectionLabels) != 0 {
		t.Errorf("given: %+v", e)
	}
}
