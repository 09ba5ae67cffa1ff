package cache

import (
	"strings"
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.PartBytes != 512<<10 || o.InlineBytes != 16<<10 || o.KeyBytesMax != 64<<10 || o.ExtentsMax != 4 || o.EntryBytesMax != 256<<20 || o.InFlightBytesMax != 32<<20 || o.HeldBytesMax != 64<<20 || o.SpilledBytesMax != 4<<30 || o.PrefetchBytes != 4<<20 || o.LookupTimeout != 250*time.Millisecond || o.GetTimeout != time.Second || o.WholeTimeout != 5*time.Second || o.SetTimeout != time.Second || o.WriterWait != 50*time.Millisecond || o.MergeTimeout != 30*time.Second || o.DeleteAfter != time.Minute || o.CloseTimeout != 2*time.Second || o.Workers != 10 || o.QueueMax != 10_000 || o.BreakerFailures != 5 || o.BreakerBackoff != time.Second || o.BreakerBackoffMax != 30*time.Second {
		t.Errorf("%+v", o)
	}
	if o := (Options{PartBytes: 1, InlineBytes: 2, KeyBytesMax: 3, ExtentsMax: 4, EntryBytesMax: 5, InFlightBytesMax: 6, HeldBytesMax: 7, SpilledBytesMax: 8, PrefetchBytes: 9, LookupTimeout: 10, GetTimeout: 11, WholeTimeout: 12, SetTimeout: 13, WriterWait: 14, MergeTimeout: 15, DeleteAfter: 16, CloseTimeout: 17, Workers: 18, QueueMax: 19, BreakerFailures: 20, BreakerBackoff: 21, BreakerBackoffMax: 22}).withDefaults(); o.PartBytes != 1 || o.InlineBytes != 2 || o.KeyBytesMax != 3 || o.ExtentsMax != 4 || o.EntryBytesMax != 5 || o.InFlightBytesMax != 6 || o.HeldBytesMax != 7 || o.SpilledBytesMax != 8 || o.PrefetchBytes != 9 || o.LookupTimeout != 10 || o.GetTimeout != 11 || o.WholeTimeout != 12 || o.SetTimeout != 13 || o.WriterWait != 14 || o.MergeTimeout != 15 || o.DeleteAfter != 16 || o.CloseTimeout != 17 || o.Workers != 18 || o.QueueMax != 19 || o.BreakerFailures != 20 || o.BreakerBackoff != 21 || o.BreakerBackoffMax != 22 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{HeldBytesMax: 5, BreakerBackoff: time.Hour}).withDefaults(); o.PrefetchBytes != 5 || o.BreakerBackoffMax != time.Hour || o.Now == nil || o.NewID == nil {
		t.Errorf("%+v", o)
	}
}

func TestRedisOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (RedisOptions{}).withDefaults(); o.DialTimeout != 5*time.Second || o.ReadTimeout != 3*time.Second || o.WriteTimeout != 3*time.Second || o.ConnectionsMax != 100 || o.IdleTimeout != 30*time.Minute {
		t.Errorf("%+v", o)
	}
	if o := (RedisOptions{DialTimeout: 1, ReadTimeout: 2, WriteTimeout: 3, ConnectionsMax: 4, IdleTimeout: 5}).withDefaults(); o.DialTimeout != 1 || o.ReadTimeout != 2 || o.WriteTimeout != 3 || o.ConnectionsMax != 4 || o.IdleTimeout != 5 {
		t.Errorf("given: %+v", o)
	}
}

func TestMemcachedOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	o := MemcachedOptions{}.withDefaults()
	if o.UpdateInterval != 10*time.Second || o.Timeout != 500*time.Millisecond || o.IdleConnectionsMax != 100 || o.OperationsMax != 100 || o.ItemBytesMax != 1<<20 || o.ServerFailures != 5 || o.ServerBackoff != time.Second || o.ServerBackoffMax != 30*time.Second || o.Resolver == nil || o.Now == nil {
		t.Errorf("%+v", o)
	}
	if o := (MemcachedOptions{ServerBackoff: time.Hour, ItemBytesMax: 5}).withDefaults(); o.ServerBackoffMax != time.Hour || o.ServerBackoff != time.Hour || o.ItemBytesMax != 5 {
		t.Errorf("given: %+v", o)
	}
}

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
