package ingest

import (
	"testing"
	"time"
)

func TestLimits_DefaultsAreThoseOfTheirComments(t *testing.T) {
	want := Limits{
		RateBytes: 32 << 20, BurstBytes: 64 << 20, Series: 20_000, ProfileBytes: 16 << 20, DecompressedBytes: 4 << 20, Symbols: 500_000, Samples: 16_000,
		Depth: 1000, Nodes: 500_000, Labels: 30, LabelNameBytes: 1024, LabelValueBytes: 2048, Age: time.Hour, Future: 10 * time.Minute, Tenants: 1000,
	}
	compare := func(got, want Limits) {
		t.Helper()
		got.Flags, want.Flags = nil, nil
		if got.RateBytes != want.RateBytes || got.BurstBytes != want.BurstBytes || got.Series != want.Series || got.ProfileBytes != want.ProfileBytes || got.DecompressedBytes != want.DecompressedBytes ||
			got.Symbols != want.Symbols || got.Samples != want.Samples || got.Depth != want.Depth || got.Nodes != want.Nodes || got.Labels != want.Labels ||
			got.LabelNameBytes != want.LabelNameBytes || got.LabelValueBytes != want.LabelValueBytes || got.Age != want.Age || got.Future != want.Future || got.Tenants != want.Tenants {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	compare(Limits{}.withDefaults(), want)
	given := Limits{RateBytes: 1, BurstBytes: 20, Series: 3, ProfileBytes: 4, DecompressedBytes: 5, Symbols: 6, Samples: 7, Depth: 8, Nodes: 9, Labels: 10, LabelNameBytes: 11, LabelValueBytes: 12, Age: 13, Future: 14, Tenants: 15}
	compare(given.withDefaults(), given)
	if got := (Limits{RateBytes: 1, DecompressedBytes: 9}).withDefaults(); got.BurstBytes != 9 {
		t.Errorf("one profile exceeds a burst of %d", got.BurstBytes)
	}
}

func TestSelfOptions_DefaultsAreThoseOfTheirComments(t *testing.T) {
	if o := (SelfOptions{}).withDefaults(); o.Every != 15*time.Second || o.MutexFraction != 100 || o.BlockRateNS != 1_000_000 {
		t.Errorf("%+v", o)
	}
	if o := (SelfOptions{Every: 1, MutexFraction: -1, BlockRateNS: -1}).withDefaults(); o.Every != 1 || o.MutexFraction != -1 || o.BlockRateNS != -1 {
		t.Errorf("%+v", o)
	}
}
