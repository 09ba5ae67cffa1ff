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
		{"last codec", func(o *Options) { o.Codec = CodecNone }, ""},
		{"unknown codec", func(o *Options) { o.Codec = CodecNone + 1 }, "does not exist"},
		{"smallest part", func(o *Options) { o.PartBytes = partBytesMin }, ""},
		{"smaller part", func(o *Options) { o.PartBytes = partBytesMin - 1 }, "part bytes"},
		{"largest part", func(o *Options) { o.PartBytes, o.InFlightBytesMax = 64<<20, 128<<20 }, ""},
		{"larger part", func(o *Options) { o.PartBytes, o.InFlightBytesMax = 64<<20+1, 1<<30 }, "part bytes"},
		{"negative inline bytes", func(o *Options) { o.InlineBytes = -1 }, "inline bytes -1"},
		{"negative key bytes", func(o *Options) { o.KeyBytesMax = -1 }, "key bytes -1"},
		{"one extent", func(o *Options) { o.ExtentsMax = 1 }, ""},
		{"negative extents", func(o *Options) { o.ExtentsMax = -1 }, "extents per entry -1: want 1 to 16"},
		{"most extents", func(o *Options) { o.ExtentsMax = 16 }, ""},
		{"more extents", func(o *Options) { o.ExtentsMax = 17 }, "extents per entry 17: want 1 to 16"},
		{"entry of one part", func(o *Options) { o.EntryBytesMax = int64(o.PartBytes) }, ""},
		{"entry of less", func(o *Options) { o.EntryBytesMax = int64(o.PartBytes) - 1 }, "fewer than one part's"},
		{"two parts in flight", func(o *Options) { o.InFlightBytesMax = 2 * int64(o.PartBytes) }, ""},
		{"fewer in flight", func(o *Options) { o.InFlightBytesMax = 2*int64(o.PartBytes) - 1 }, "fewer than two parts'"},
		{"nothing held", func(o *Options) { o.HeldBytesMax, o.SpilledBytesMax, o.PrefetchBytes = 0, 0, 0 }, ""},
		{"negative held bytes", func(o *Options) { o.HeldBytesMax = -1 }, "held bytes -1"},
		{"negative spilled bytes", func(o *Options) { o.SpilledBytesMax = -1 }, "spilled bytes -1"},
		{"negative prefetch", func(o *Options) { o.PrefetchBytes = -1 }, "prefetch bytes -1"},
		{"one worker", func(o *Options) { o.Workers, o.QueueMax, o.BreakerFailures = 1, 1, 1 }, ""},
		{"negative workers", func(o *Options) { o.Workers = -1 }, "workers -1"},
		{"negative queue", func(o *Options) { o.QueueMax = -1 }, "queue length -1"},
		{"negative breaker", func(o *Options) { o.BreakerFailures = -1 }, "breaker failures -1"},
		{"negative duration", func(o *Options) { o.DeleteAfter = -1 }, "duration -1ns is negative"},
	} {
		o := Options{}.withDefaults()
		c.change(&o)
		if err := o.validate(); (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
