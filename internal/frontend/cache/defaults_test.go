package cache

import (
	"strings"
	"testing"
)

func TestOptions_ValidateAcceptsTheLimitsAndNothingBeyond(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
		fault  string // "": none
	}{
		{"defaults", func(*Options) {}, ""},
		{"TTL of nothing", func(o *Options) { o.TTL = 0 }, ""},
		{"negative TTL", func(o *Options) { o.TTL = -1 }, "TTL -1ns is negative"},
		{"smallest part", func(o *Options) { o.PartBytes = partBytesMin }, ""},
		{"smaller part", func(o *Options) { o.PartBytes = partBytesMin - 1 }, "part bytes"},
		{"largest part", func(o *Options) { o.PartBytes, o.EntryBytesMax = 64<<20, 64<<20 }, ""},
		{"larger part", func(o *Options) { o.PartBytes, o.EntryBytesMax = 64<<20+1, 1<<30 }, "part bytes"},
		{"entry of one part", func(o *Options) { o.EntryBytesMax = int64(o.PartBytes) }, ""},
		{"entry of less", func(o *Options) { o.EntryBytesMax = int64(o.PartBytes) - 1 }, "fewer than one part's"},
		{"one worker", func(o *Options) { o.Workers, o.QueueMax, o.BreakerFailures = 1, 1, 1 }, ""},
		{"negative workers", func(o *Options) { o.Workers = -1 }, "workers -1"},
		{"negative queue", func(o *Options) { o.QueueMax = -1 }, "queue length -1"},
		{"negative breaker", func(o *Options) { o.BreakerFailures = -1 }, "breaker failures -1"},
		{"negative back-off", func(o *Options) { o.BreakerBackoff = -1 }, "back-off -1ns is negative"},
	} {
		o := Options{}.withDefaults()
		c.change(&o)
		if err := o.validate(); (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
