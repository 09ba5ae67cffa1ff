package cache

import (
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
