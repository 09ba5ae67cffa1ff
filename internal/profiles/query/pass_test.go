package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	instruments "github.com/ferula-io/ferula/metrics"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// faulted is a source whose columns or IDs cannot be read.
type faulted struct {
	block.Source
	columns, ids error
	away         bool
	wait         time.Duration
	reads        *atomic.Int64
}

func (f *faulted) Remote() bool { return f.away }

func (f *faulted) Columns(row int) (block.Columns, error) {
	if f.columns != nil {
		f.reads.Add(1)
		time.Sleep(f.wait)
		return block.Columns{}, f.columns
	}
	return f.Source.Columns(row)
}

func (f *faulted) IDs(row int) ([]byte, error) {
	if f.ids != nil {
		f.reads.Add(1)
		return nil, f.ids
	}
	return f.Source.IDs(row)
}

// faults is a store with faulted sources.
type faults struct {
	*store.Store
	fault func(i int, src block.Source) block.Source
}

func (f faults) View(ctx context.Context, tenant string, minNS, maxNS int64) (*store.View, error) {
	v, err := f.Store.View(ctx, tenant, minNS, maxNS)
	if err == nil {
		for i, src := range v.Sources {
			v.Sources[i] = f.fault(i, src)
		}
	}
	return v, err
}

// several returns a store with n blocks of one profile each. The profile in block i has the value (i+1)*10 ms or, with
// ties, the same value and time as the others.
func several(t testing.TB, n int, ties bool) *store.Store {
	ctx, s := context.Background(), openStore(t, t.TempDir(), store.Options{Retention: -1, BlockBytes: 1}) // no block is merged
	for i := range n {
		at, value := epochMS*1e6+int64(i)*1e6, int64(i+1)
		if ties {
			at, value = epochMS*1e6, 1
		}
		raw := cpu(map[string][]string{"a": {"a", "main"}}, map[string]int64{"a": value})
		must(t, errors.Join(s.Append(ctx, "t", []profiles.RawProfile{{Labels: cpuLabels("shop"), TimeNS: at, Raw: raw}}), s.Flush(ctx)))
	}
	return s
}

func minute(exemplars bool) *profiles.SeriesRequest {
	return &profiles.SeriesRequest{Tenant: "t", Type: cpuType, StartMS: epochMS, EndMS: epochMS + 60_000, StepMS: 60_000, Exemplars: exemplars, GroupBy: []string{"service_name"}}
}

func total(a *profiles.SeriesResult) (sum float64) {
	for _, s := range a.Series {
		for _, p := range s.Points {
			sum += p.Value
		}
	}
	return sum
}

func TestSelectSeries_SkipsASourceWithUnreadableIDs(t *testing.T) {
	for name, tt := range map[string]struct {
		ties bool
		bad  int
	}{"the winner": {false, 2}, "one of a tie, scanned first": {true, 0}, "one of a tie, scanned last": {true, 2}} {
		var reads atomic.Int64
		s := faults{several(t, 3, tt.ties), func(i int, src block.Source) block.Source {
			if i == tt.bad {
				return &faulted{Source: src, ids: fmt.Errorf("%w: ids", profiles.ErrCorrupt), reads: &reads}
			}
			return src
		}}
		result, err := New(Options{}, s).SelectSeries(context.Background(), minute(true))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := 3e7 // of the readable blocks
		if tt.ties {
			want = 2e7
		}
		if len(result.Warnings) != 1 || total(result) != want || len(result.Series) != 1 || len(result.Series[0].Points) == 0 || len(result.Series[0].Exemplars) != len(result.Series[0].Points) {
			t.Errorf("%s: %v %v %+v", name, result.Warnings, total(result), result.Series)
		}
		result.Close()
	}
}

func TestPass_ReadsFailingSourcesOnce(t *testing.T) {
	const n = 30
	var reads atomic.Int64
	all := faults{several(t, n, false), func(i int, src block.Source) block.Source {
		if i > 0 {
			return &faulted{Source: src, columns: fmt.Errorf("%w: down", profiles.ErrUnavailable), away: true, reads: &reads}
		}
		return src
	}}
	e := New(Options{}, all)
	result, err := e.SelectSeries(context.Background(), minute(false))
	if err != nil || len(result.Warnings) != n-1 || total(result) != 1e7 || reads.Load() != n-1 {
		t.Errorf("%v: %d warnings, sum %v, %d reads", err, len(result.Warnings), total(result), reads.Load())
	}
	result.Close()
	reads.Store(0)
	flame, err := e.MergeFlame(context.Background(), &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: epochMS, EndMS: epochMS + 60_000})
	if err != nil || len(flame.Warnings) != n-1 || flame.Total != 1e7 || reads.Load() != n-1 {
		t.Errorf("%v: %+v, %d reads", err, flame, reads.Load())
	}
}

func TestPass_StalledBucketIsNotReadBlockByBlock(t *testing.T) {
	var reads atomic.Int64
	s := faults{several(t, 12, false), func(i int, src block.Source) block.Source {
		if i != 5 {
			return &faulted{Source: src, columns: fmt.Errorf("%w: timeout", profiles.ErrUnavailable), away: true, wait: 30 * time.Millisecond, reads: &reads}
		}
		return src
	}}
	e := New(Options{Timeout: time.Minute}, s)
	e.opts.Timeout = 200 * time.Millisecond // a quarter of it may be spent waiting
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	view, err := s.View(ctx, "t", 0, 1<<62)
	must(t, err)
	defer view.Close()
	read := 0
	warnings, err := e.once("t", view, func(p *pass) error {
		return p.each(ctx, func(src block.Source) error {
			_, err := src.Columns(0)
			if err == nil {
				read++
			}
			return err
		})
	})
	if err != nil || len(warnings) < 11 || read > 1 || reads.Load() > 2 || !strings.Contains(warnings[10].Error(), "did not respond") {
		t.Errorf("%v: %d warnings, %d read, %d tried: %v", err, len(warnings), read, reads.Load(), warnings[len(warnings)-1])
	}
}

func TestPartial_IsCountedLoggedOnceAndRefusedWithFailPartial(t *testing.T) {
	var reads atomic.Int64
	s := faults{several(t, 2, false), func(i int, src block.Source) block.Source {
		if i == 0 {
			return &faulted{Source: src, columns: fmt.Errorf("%w: at byte %d", profiles.ErrCorrupt, reads.Load()), reads: &reads}
		}
		return src
	}}
	var log, page bytes.Buffer
	set := instruments.NewSet()
	e := New(Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Metrics: set}, s)
	merge := &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: epochMS, EndMS: epochMS + 60_000}
	for range 3 {
		if flame, err := e.MergeFlame(context.Background(), merge); err != nil || len(flame.Warnings) != 1 {
			t.Fatalf("%+v %v", flame, err)
		}
	}
	set.WritePrometheus(&page)
	if !strings.Contains(page.String(), "ferula_profiles_partial_responses_total 3\n") || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "block 0") {
		t.Errorf("%s\n%s", page.String(), log.String())
	}
	strict := New(Options{FailPartial: true}, s)
	if _, err := strict.MergeFlame(context.Background(), merge); !errors.Is(err, profiles.ErrUnavailable) || !strings.Contains(err.Error(), "partial") {
		t.Error(err)
	}
	if _, err := strict.SelectSeries(context.Background(), minute(false)); !errors.Is(err, profiles.ErrUnavailable) {
		t.Error(err)
	}
	if _, _, err := strict.MergePprof(context.Background(), merge); !errors.Is(err, profiles.ErrUnavailable) {
		t.Error(err)
	}
}

// blocked is a store whose views block.
type blocked struct {
	*store.Store
	entered chan struct{}
	release chan struct{}
}

func (b blocked) View(ctx context.Context, tenant string, minNS, maxNS int64) (*store.View, error) {
	b.entered <- struct{}{}
	select {
	case <-b.release:
		return b.Store.View(ctx, tenant, minNS, maxNS)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestAdmit_QueriesWaitForASlotUntilTheTimeout(t *testing.T) {
	b := blocked{several(t, 1, false), make(chan struct{}, 10), make(chan struct{})}
	e := New(Options{ConcurrencyMax: 1}, b)
	merge := &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: epochMS, EndMS: epochMS + 60_000}
	first := make(chan error, 1)
	go func() {
		_, err := e.MergeFlame(context.Background(), merge)
		first <- err
	}()
	<-b.entered
	short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := e.MergeFlame(short, merge); !errors.Is(err, profiles.ErrLimit) {
		t.Errorf("the second: %v", err)
	}
	gone, leave := context.WithCancel(context.Background())
	leave()
	if _, err := e.SelectSeries(gone, minute(true)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled query: %v", err)
	}
	if len(b.entered) != 0 {
		t.Error("a query without a slot has run")
	}
	b.release <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	go func() { b.release <- struct{}{} }()
	if _, err := e.MergeFlame(context.Background(), merge); err != nil {
		t.Errorf("the slot was not released: %v", err)
	}
	quick := New(Options{Timeout: 10 * time.Millisecond}, b)
	if _, err := quick.MergeFlame(context.Background(), merge); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its timeout: %v", err)
	}
}

func TestAdmit_RefusesARangeBeyondTheLimit(t *testing.T) {
	e := New(Options{RangeMax: time.Hour}, several(t, 1, false))
	ctx, hour := context.Background(), int64(3_600_000)
	for _, tt := range []struct {
		start, end int64
		want       error
	}{{epochMS, epochMS + hour, nil}, {epochMS, epochMS + hour + 1, profiles.ErrLimit}, {-1 << 63, 1<<63 - 1, profiles.ErrLimit}} {
		_, err := e.MergeFlame(ctx, &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: tt.start, EndMS: tt.end})
		_, _, labelErr := e.LabelNames(ctx, &profiles.LabelsRequest{Tenant: "t", StartMS: tt.start, EndMS: tt.end})
		result, seriesErr := e.SelectSeries(ctx, &profiles.SeriesRequest{Tenant: "t", Type: cpuType, StartMS: tt.start, EndMS: tt.end, StepMS: hour})
		result.Close()
		if !errors.Is(err, tt.want) || !errors.Is(labelErr, tt.want) || !errors.Is(seriesErr, tt.want) {
			t.Errorf("%d to %d: %v, %v, %v", tt.start, tt.end, err, labelErr, seriesErr)
		}
	}
}

func TestSelectSeries_OnlyGroupsWithRowsCountAgainstPointsMax(t *testing.T) {
	ctx, s := context.Background(), openStore(t, t.TempDir(), store.Options{Retention: -1})
	raw := cpu(map[string][]string{"a": {"a", "main"}}, map[string]int64{"a": 1})
	var pushed []profiles.RawProfile
	for i := range 200 { // pods that come and go, two a minute
		pushed = append(pushed, profiles.RawProfile{Labels: cpuLabels(fmt.Sprintf("pod-%d", i)), TimeNS: (epochMS + int64(i)*30_000) * 1e6, Raw: raw})
	}
	must(t, s.Append(ctx, "t", pushed))
	e := New(Options{}, s)
	e.pointsMax = 30
	req := &profiles.SeriesRequest{Tenant: "t", Type: cpuType, StartMS: epochMS + 60_000, EndMS: epochMS + 120_000, StepMS: 10_000, GroupBy: []string{"service_name"}}
	for _, exemplars := range []bool{false, true} {
		req.Exemplars = exemplars
		result, err := e.SelectSeries(ctx, req)
		if err != nil || len(result.Series) != 3 || total(result) != 3e7 {
			t.Errorf("exemplars %v: %v %+v", exemplars, err, result)
		}
		result.Close()
		more := *req
		more.EndMS += 60_000
		if _, err := e.SelectSeries(ctx, &more); !errors.Is(err, profiles.ErrLimit) {
			t.Errorf("exemplars %v: with more groups than the limit: %v", exemplars, err)
		}
	}
	req.CallSite, req.Exemplars = []string{"main"}, false
	if result, err := e.SelectSeries(ctx, req); err != nil || total(result) != 3e7 {
		t.Errorf("by samples: %v %+v", err, result)
	}
	req.EndMS += 60_000
	if _, err := e.SelectSeries(ctx, req); !errors.Is(err, profiles.ErrLimit) {
		t.Errorf("by samples, too many: %v", err)
	}
}

func TestSelectSeries_TimestampsAreWholeMilliseconds(t *testing.T) {
	ctx, s := context.Background(), openStore(t, t.TempDir(), store.Options{Retention: -1})
	raw := cpu(map[string][]string{"a": {"a", "main"}}, map[string]int64{"a": 1})
	must(t, s.Append(ctx, "t", []profiles.RawProfile{{Labels: cpuLabels("shop"), TimeNS: epochMS*1e6 + 400_000, Raw: raw}}))
	e := New(Options{}, s)
	for _, where := range []string{"head", "block"} {
		if where == "block" {
			must(t, s.Flush(ctx))
		}
		for _, tt := range []struct {
			start, end, step int64
			want             float64
		}{
			{epochMS, epochMS, 1, 1e7}, {epochMS, epochMS + 10_000, 15_000, 1e7}, {epochMS - 15_000, epochMS, 15_000, 1e7},
			{epochMS - 2, epochMS - 1, 1, 0}, {epochMS + 1, epochMS + 2, 1, 0},
		} {
			req := &profiles.SeriesRequest{Tenant: "t", Type: cpuType, StartMS: tt.start, EndMS: tt.end, StepMS: tt.step}
			result, err := e.SelectSeries(ctx, req)
			if err != nil || total(result) != tt.want {
				t.Errorf("%s: %d to %d: %v, %v", where, tt.start-epochMS, tt.end-epochMS, total(result), err)
			}
			if tt.want > 0 && result.Series[0].Points[0].TimeMS != epochMS {
				t.Errorf("%s: the point is at %d", where, result.Series[0].Points[0].TimeMS-epochMS)
			}
			result.Close()
		}
	}
}
