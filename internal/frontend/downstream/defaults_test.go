package downstream

import (
	"testing"
	"time"
)

func TestOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (Options{}).withDefaults(); o.ConnectTimeout != 5*time.Second || o.IdleTimeout != time.Minute || o.BackoffMin != 100*time.Millisecond || o.BackoffMax != 2*time.Second || o.RetryAfterMax != 5*time.Second || o.Retries != 5 || o.BudgetRatio != 0.2 || o.BudgetPerSecond != 1 || o.BudgetBurst != 100 || o.BytesMax != 16<<30 || o.ReadBufferBytes != 256<<10 {
		t.Errorf("%+v", o)
	}
	if o := (Options{ConnectTimeout: 1, IdleTimeout: 2, BackoffMin: 3, BackoffMax: 4, RetryAfterMax: 5, Retries: 6, BudgetRatio: 7, BudgetPerSecond: 8, BudgetBurst: 9, BytesMax: 10, ReadBufferBytes: 11}).withDefaults(); o.ConnectTimeout != 1 || o.IdleTimeout != 2 || o.BackoffMin != 3 || o.BackoffMax != 4 || o.RetryAfterMax != 5 || o.Retries != 6 || o.BudgetRatio != 7 || o.BudgetPerSecond != 8 || o.BudgetBurst != 9 || o.BytesMax != 10 || o.ReadBufferBytes != 11 {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{BackoffMin: time.Hour}).withDefaults(); o.BackoffMax != time.Hour || len(o.Encodings) != 1 || o.Encodings[0] != Identity || o.UserAgent == "" || o.Jitter == nil {
		t.Errorf("%+v", o)
	}
	if o := (Options{Encodings: []string{Gzip, Identity}, UserAgent: "x"}).withDefaults(); len(o.Encodings) != 2 || o.UserAgent != "x" {
		t.Errorf("%+v", o)
	}
}
