package export

import (
	"errors"
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.Window != 2*time.Hour || o.Tries != 5 || o.RetryAfter != time.Second {
		t.Errorf("%+v", o)
	}
	if o := (Options{Window: 1, Tries: 2, RetryAfter: 3}).withDefaults(); o.Window != 1 || o.Tries != 2 || o.RetryAfter != 3 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{Output: "x.csv"}).withDefaults(); o.Format != FormatOf("x.csv") || o.Permanent(errors.New("x")) {
		t.Errorf("%+v", o)
	}
	if o := (Options{Output: "x.csv", Format: "parquet"}).withDefaults(); o.Format != "parquet" {
		t.Errorf("%+v", o)
	}
}
