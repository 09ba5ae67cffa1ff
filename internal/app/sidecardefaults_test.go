package app

import (
	"testing"
	"time"
)

func TestSidecarOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (SidecarOptions{}).withDefaults(); o.ReadyTimeout != 10*time.Minute || o.PollInterval != 30*time.Second || o.PollTimeout != 30*time.Second || o.Limits.SortBytesMax != 256<<20 {
		t.Errorf("%+v", o)
	}
	if o := (SidecarOptions{ReadyTimeout: 1, PollInterval: 2, PollTimeout: 3}).withDefaults(); o.ReadyTimeout != 1 || o.PollInterval != 2 || o.PollTimeout != 3 {
		t.Errorf("given: %+v", o)
	}
}
