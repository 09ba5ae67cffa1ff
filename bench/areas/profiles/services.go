package profiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/bench/area"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/metrics"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

const (
	mergeServices = 10
	mergeCPU      = "CPU: merge in a store just opened"
	mergeSymbols  = "symbols read: merge in a store just opened"

	ofAll = "all services"
	ofOne = "one service of ten"
)

// oneService measures the cost of the profiles of one service, as a share of the cost of all services.
func oneService(ctx context.Context, b *area.Bench) error {
	n := profilesWhole
	if b.Short {
		n /= 5
	}
	return inDir("", func(dir string) error { return oneServiceIn(ctx, b, dir, n) })
}

func oneServiceIn(ctx context.Context, b *area.Bench, dir string, n int) error {
	pushed, totals, err := heapPushes(n, mergeServices)
	if err != nil {
		return err
	}
	wants := map[string]int64{}
	for i, total := range totals {
		wants[ofAll] += total
		if i%mergeServices == 0 {
			wants[ofOne] += total
		}
	}
	err = inStore(dir, store.Options{}, func(s *store.Store, _ string) error { return errors.Join(pushAll(ctx, s, pushed), s.Flush(ctx)) })
	if err != nil {
		return err
	}
	err = b.EachRound(mergeCPU, func(round int) error {
		for _, side := range []string{ofAll, ofOne} {
			cpu, symbols, err := mergeOnce(ctx, dir, side, wants[side])
			if err != nil {
				return fmt.Errorf("merge of %s: %w", side, err)
			}
			b.Add(round, ferula, mergeCPU+", "+side, area.Seconds, cpu)
			b.Add(round, ferula, mergeSymbols+", "+side, area.Bytes, symbols)
		}
		return nil
	})
	worst, from := 0.0, []string(nil)
	for _, what := range []string{mergeCPU, mergeSymbols} {
		one, all := what+", "+ofOne, what+", "+ofAll
		worst, from = max(worst, area.Over(b.Median(ferula, one), b.Median(ferula, all))), append(from, one, all)
	}
	b.Measure("profiles/merge-one-service", worst, from...)
	b.Note(fmt.Sprintf("One service: %d profiles of %d services in one block, of which a flame graph is made by a store that was just opened; symbols read are the bytes of the decoded symbols that the store counts afterwards. The CPU of collections of garbage in which there was no merge is subtracted on both sides.", n, mergeServices))
	return err
}

// mergeOnce merges the profiles of a side and checks their sum.
func mergeOnce(ctx context.Context, dir, side string, want int64) (cpu, symbols float64, err error) {
	set := metrics.NewSet()
	s, err := openWith(store.Options{Dir: dir}, set)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e := query.New(query.Options{}, s)
	req := &series.MergeRequest{Tenant: tenant, Type: heapType, StartMS: epochMS, EndMS: epochMS + hourMS}
	if side == ofOne {
		req.Matchers = []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, series.LabelService, serviceName(0))}
	}
	// The collections of garbage of used sweep the memory of the whole bench: 9 ms, as much as the merge of one service.
	idle, err := used(func() error { return nil })
	if err != nil {
		return 0, 0, err
	}
	var got int64
	if cpu, err = used(func() error {
		flame, err := e.MergeFlame(ctx, req)
		if err != nil {
			return err
		}
		got = flame.Total
		return errors.Join(flame.Warnings...)
	}); err != nil {
		return 0, 0, err
	}
	if got != want || want == 0 {
		return 0, 0, fmt.Errorf("%w: %d of %d bytes", area.ErrUnequal, got, want)
	}
	cpu = max(0, cpu-idle)
	symbols, err = gauge(set, `ferula_profiles_memory_bytes{kind="symbols"}`)
	if err == nil && symbols == 0 {
		err = fmt.Errorf("%w: no symbols are counted", area.ErrEmpty)
	}
	return cpu, symbols, err
}

// gauge returns the value of a line of /metrics.
func gauge(set *metrics.Set, name string) (float64, error) {
	var page bytes.Buffer
	set.WritePrometheus(&page)
	for line := range strings.Lines(page.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s: %w", name, area.ErrEmpty)
}
