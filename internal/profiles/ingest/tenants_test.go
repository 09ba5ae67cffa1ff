package ingest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

func TestTenants_RejectedPushIsNotRecordedAndIdleTenantIsEvicted(t *testing.T) {
	in, store := newIngester(t, Limits{Tenants: 2})
	clock := now
	in.now = func() time.Time { return clock }
	push := func(tenant string) error {
		raw := testProfile(t, func(p *profile.Profile) { p.TimeNanos = clock.UnixNano() })
		return in.Push(context.Background(), tenant, []profilepb.RawProfile{{Labels: named(), Raw: raw}})
	}
	store.err = errors.New("full")
	for n := range 10 {
		if err := push(fmt.Sprint("refused", n)); !errors.Is(err, store.err) {
			t.Fatal(err)
		}
	}
	store.err = nil
	limited := func(tenant string) bool {
		err := push(tenant)
		var limit *LimitError
		if err != nil && (!errors.As(err, &limit) || limit.Reason != "tenants") {
			t.Fatal(err)
		}
		return err != nil
	}
	if limited("one") || limited("two") || !limited("three") || limited("two") {
		t.Error("two tenants are not the limit")
	}
	clock = clock.Add(seriesIdle - time.Minute)
	if limited("two") || !limited("three") {
		t.Error("a tenant was forgotten within the hour")
	}
	clock = clock.Add(3 * time.Minute)
	if limited("three") || limited("two") || !limited("one") {
		t.Error("the idle tenant was not forgotten, or another one was")
	}
}

func TestPush_RepairedProfileIsStoredAndCounted(t *testing.T) {
	in, store := newIngester(t, Limits{Depth: 2})
	raw := testProfile(t, func(p *profile.Profile) {
		p.TimeNanos = now.UnixMicro()
		bad := *p.Sample[0]
		bad.Value = []int64{-1}
		for len(bad.Value) < len(p.SampleType) {
			bad.Value = append(bad.Value, 1)
		}
		deep := *p.Sample[0]
		for range 5 {
			deep.Location = append(deep.Location, p.Sample[0].Location[0])
		}
		p.Sample = append(p.Sample, &bad, &deep)
	})
	must(t, in.Push(context.Background(), "t", []profilepb.RawProfile{{Labels: named(), Raw: raw}}))
	if got := store.list(); len(got) != 1 || got[0].timeNS != now.UnixMicro()*1000 {
		t.Errorf("stored: %v", got)
	}
	for reason, want := range map[string]uint64{"negative_value": 1, "depth": 1, "time_unit": 1, "missing_mapping": 0} {
		if got := in.repaired.With(reason).Get(); got != want {
			t.Errorf("%s: %d, want %d", reason, got, want)
		}
	}
}

func TestPush_SeriesThatLabelsOfSamplesMakeAreCounted(t *testing.T) {
	raw := testProfile(t, func(p *profile.Profile) {
		for i := range 100 {
			one := *p.Sample[0]
			one.Label = map[string][]string{"request_id": {fmt.Sprint(i)}, "span_id": {fmt.Sprint(i % 7)}}
			p.Sample = append(p.Sample, &one)
		}
	})
	push := func(drop ...string) error {
		in, _ := newIngester(t, Limits{})
		var err error
		if in, err = New(Options{Limits: Limits{Series: 3}, DropLabels: drop}, in.store, in.logger, nil); err != nil {
			t.Fatal(err)
		}
		in.now = func() time.Time { return now }
		return in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}})
	}
	var limit *LimitError
	if err := push(); !errors.As(err, &limit) || limit.Reason != "series" {
		t.Errorf("a hundred series: %v", err)
	}
	if err := push("user", "request_id"); err != nil {
		t.Errorf("with the label dropped: %v", err)
	}
}

func TestPush_LabelsBeyondTheSplitsAreDroppedAndCounted(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	raw := testProfile(t, func(p *profile.Profile) {
		for i := range 200 {
			one := *p.Sample[0]
			one.Label = map[string][]string{"request_id": {fmt.Sprint(i)}}
			p.Sample = append(p.Sample, &one)
		}
	})
	must(t, in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}}))
	if got := in.repaired.With("sample_labels").Get(); got != 200-127 {
		t.Errorf("%v samples are counted", got)
	}
}
