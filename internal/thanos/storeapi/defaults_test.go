package storeapi

import (
	"testing"
)

func TestClientOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (ClientOptions{}).withDefaults(); o.BatchSeries != 64 || o.MessageBytesMax != 1<<31-1 {
		t.Errorf("%+v", o)
	}
	if o := (ClientOptions{BatchSeries: 1, MessageBytesMax: 2}).withDefaults(); o.BatchSeries != 1 || o.MessageBytesMax != 2 {
		t.Errorf("given: %+v", o)
	}
	if o := (ServerOptions{}).withDefaults(); o.SortBytesMax != 256<<20 || o.Logger == nil || o.Metrics == nil {
		t.Errorf("%+v", o)
	}
	if o := (ServerOptions{SortBytesMax: 5}).withDefaults(); o.SortBytesMax != 5 {
		t.Errorf("%+v", o)
	}
}
