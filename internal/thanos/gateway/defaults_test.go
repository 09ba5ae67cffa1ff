package gateway

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.PostingsBytes != 256<<20 || o.Idle != 5*time.Minute || o.SortBytesMax != 256<<20 {
		t.Errorf("%+v", o)
	}
	if o := (Options{PostingsBytes: 1, Idle: 2, SortBytesMax: 3}).withDefaults(); o.PostingsBytes != 1 || o.Idle != 2 || o.SortBytesMax != 3 {
		t.Errorf("given: %+v", o)
	}
}
