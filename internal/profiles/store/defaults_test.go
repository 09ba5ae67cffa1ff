package store

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.Retention != 15*24*time.Hour || o.HeadBytes != 64<<20 || o.HeadsBytes != 512<<20 || o.MemoryBytes != 1<<30 || o.HeadAge != 15*time.Minute || o.BlockBytes != 256<<20 || o.TenantsMax != 1000 || o.BlockSpan != 24*time.Hour || o.RemoteDeleteDelay != 2*time.Hour || o.PendingBytes != 64<<20 || o.RemoteEvery != 2*time.Minute || o.RemoteOpenMax != 4096 || o.RemoteIndexBytes != 128<<20 {
		t.Errorf("%+v", o)
	}
	if o := (Options{Retention: 1, HeadBytes: 2, HeadsBytes: 3, MemoryBytes: 4, HeadAge: 5, BlockBytes: 6, TenantsMax: 7, BlockSpan: 8, RemoteDeleteDelay: 9, PendingBytes: 10, RemoteEvery: 11, RemoteOpenMax: 12, RemoteIndexBytes: 13}).withDefaults(); o.Retention != 1 || o.HeadBytes != 2 || o.HeadsBytes != 3 || o.MemoryBytes != 4 || o.HeadAge != 5 || o.BlockBytes != 6 || o.TenantsMax != 7 || o.BlockSpan != 8 || o.RemoteDeleteDelay != 9 || o.PendingBytes != 10 || o.RemoteEvery != 11 || o.RemoteOpenMax != 12 || o.RemoteIndexBytes != 13 {
		t.Errorf("given: %+v", o)
	}
	for retention, span := range map[time.Duration]time.Duration{-1: 24 * time.Hour, 100 * time.Hour: 10 * time.Hour, 240 * time.Hour: 24 * time.Hour, time.Hour: fanout * 15 * time.Minute} {
		if o := (Options{Retention: retention}).withDefaults(); o.BlockSpan != span {
			t.Errorf("retention %s: blocks of %s, want %s", retention, o.BlockSpan, span)
		}
	}
	if o := (Options{HeadsBytes: 7}).withDefaults(); o.MemoryBytes != 14 {
		t.Errorf("%+v", o)
	}
}
