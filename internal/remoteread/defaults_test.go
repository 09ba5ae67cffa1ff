package remoteread

import (
	"net/http"
	"reflect"
	"testing"
	"time"
)

func TestClientOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (ClientOptions{}).withDefaults(); o.FrameBytesMax != 50_000_000 || o.SeriesBytesMax != 64<<20 || o.HoldBytesMax != 12<<20 || o.ReadAheadBytes != 64<<10 || o.Tries != 3 || o.RetryAfter != 200*time.Millisecond {
		t.Errorf("%+v", o)
	}
	if o := (ClientOptions{FrameBytesMax: 1, SeriesBytesMax: 2, HoldBytesMax: 3, ReadAheadBytes: 4, Tries: 5, RetryAfter: 6}).withDefaults(); o.FrameBytesMax != 1 || o.SeriesBytesMax != 2 || o.HoldBytesMax != 3 || o.ReadAheadBytes != 4 || o.Tries != 5 || o.RetryAfter != 6 {
		t.Errorf("given: %+v", o)
	}
	own := &http.Client{}
	if o := (ClientOptions{}).withDefaults(); o.HTTP != http.DefaultClient {
		t.Error("another client")
	}
	if o := (ClientOptions{HTTP: own}).withDefaults(); o.HTTP != own {
		t.Error("another client than the given one")
	}
	if o := (Options{}).withDefaults(); o.WriteTimeout != time.Minute || o.HeldSeriesMax != 5_000_000 || o.BodyReadTimeout != time.Minute || !o.ExternalLabels().IsEmpty() {
		t.Errorf("%+v", o)
	}
	if o := (Options{WriteTimeout: 1, HeldSeriesMax: 2, BodyReadTimeout: 3}).withDefaults(); o.WriteTimeout != 1 || o.HeldSeriesMax != 2 || o.BodyReadTimeout != 3 {
		t.Errorf("%+v", o)
	}
}

// The package comment and docs/ops/remote-read.md name this size.
func TestMeasuredSeries_TakesTheDocumentedBytes(t *testing.T) {
	if size := reflect.TypeFor[measuredSeries]().Size(); size != 24 {
		t.Errorf("%d bytes a series, documented are 24", size)
	}
}
