package limit

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.ConcurrencyMax != 256 || o.TenantConcurrencyMax != 192 || o.WaitMax != time.Minute || o.TenantQueueMax != 512 || o.TenantsMax != 10_000 {
		t.Errorf("%+v", o)
	}
	if o := (Options{ConcurrencyMax: 5, TenantConcurrencyMax: 4, WaitMax: 3, TenantQueueMax: -1, TenantsMax: 1}).withDefaults(); o.ConcurrencyMax != 5 || o.TenantConcurrencyMax != 4 || o.WaitMax != 3 || o.TenantQueueMax != -1 || o.TenantsMax != 1 {
		t.Errorf("given: %+v", o)
	}
	for all, tenant := range map[int]int{1: 1, 3: 3, 4: 3, 8: 6, 9: 7} {
		if o := (Options{ConcurrencyMax: all}).withDefaults(); o.TenantConcurrencyMax != tenant {
			t.Errorf("%d slots: %d of one tenant", all, o.TenantConcurrencyMax)
		}
	}
	if o := (Options{ConcurrencyMax: 3, TenantConcurrencyMax: 4}).withDefaults(); o.TenantConcurrencyMax != 3 {
		t.Errorf("%+v", o)
	}
}
