package split

import (
	"strings"
	"testing"
	"time"
)

func TestOptions_ValidateNamesEveryFault(t *testing.T) {
	for name, tt := range map[string]struct {
		o    Options
		want []string
	}{
		"none":                 {Options{}, nil},
		"an interval":          {Options{Interval: time.Hour}, nil},
		"dynamic":              {Options{MinInterval: 1, MaxInterval: 2, HorizontalShards: 2}, nil},
		"equal intervals":      {Options{MinInterval: 2, MaxInterval: 2, HorizontalShards: 2}, nil},
		"no minimum":           {Options{MaxInterval: 2, HorizontalShards: 2}, []string{"max-split-interval: must be set together"}},
		"no maximum":           {Options{MinInterval: 2, HorizontalShards: 2}, []string{"max-split-interval: must be set together"}},
		"shards only":          {Options{HorizontalShards: 2}, []string{"max-split-interval: must be set together"}},
		"one shard":            {Options{MinInterval: 1, MaxInterval: 2, HorizontalShards: 1}, []string{"horizontal-shards: must be at least 2"}},
		"no shards":            {Options{MinInterval: 1, MaxInterval: 2}, []string{"horizontal-shards: must be at least 2"}},
		"descending":           {Options{MinInterval: 3, MaxInterval: 2, HorizontalShards: 2}, []string{"max-split-interval: must not be less"}},
		"both":                 {Options{Interval: 1, MaxInterval: 2}, []string{"cannot be set together"}},
		"both, with a minimum": {Options{Interval: 1, MinInterval: 2}, []string{"cannot be set together"}},
		"both, with shards":    {Options{Interval: 1, HorizontalShards: 2}, []string{"cannot be set together"}},
		"a negative interval":  {Options{Interval: -1}, []string{"must not be negative"}},
		"a negative minimum":   {Options{MinInterval: -1, MaxInterval: 1, HorizontalShards: 2}, []string{"must not be negative"}},
		"a negative maximum":   {Options{MinInterval: 1, MaxInterval: -1, HorizontalShards: 2}, []string{"must not be negative", "must not be less"}},
		"negative shards":      {Options{MinInterval: 1, MaxInterval: 1, HorizontalShards: -1}, []string{"must not be negative", "horizontal-shards: must be at least 2"}},
	} {
		err := tt.o.Validate()
		if (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil && len(strings.Split(err.Error(), "\n")) != len(tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}
