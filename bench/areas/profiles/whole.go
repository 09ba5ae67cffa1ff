package profiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/query"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

const (
	profilesWhole  = 10_000
	profilesMerged = 2_000
	profilesPushed = 1_000
	clients        = 16
)

// whole measures operations on whole profiles: pushes, bytes and merges.
func whole(ctx context.Context, b *area.Bench) (err error) {
	pushed, totals, err := heapPushes(profilesWhole+profilesPushed, services)
	if err != nil {
		return err
	}
	if err := places(ctx, b, pushed, totals); err != nil {
		return err
	}
	pushed = pushed[:profilesWhole]
	gz := 0
	for i := range pushed {
		gz += len(pushed[i].Raw)
	}
	b.Logf("%d profiles of %d bytes, gzipped", len(pushed), gz/len(pushed))
	if err := pushes(ctx, b, pushed[:profilesPushed]); err != nil {
		return err
	}
	if err := pushesOverHTTP(ctx, b, pushed[:profilesPushed], totals); err != nil {
		return err
	}
	return inStore("", store.Options{}, func(s *store.Store, dir string) error {
		for part := range 4 { // four blocks, which compaction merges into one
			if err := errors.Join(pushAll(ctx, s, pushed[part*len(pushed)/4:(part+1)*len(pushed)/4]), s.Flush(ctx)); err != nil {
				return err
			}
		}
		flushed := bytesBelow(filepath.Join(dir, "profiles"))
		cpu, err := used(func() error { return s.Compact(ctx) })
		if err != nil {
			return err
		}
		b.Add(1, ferula, compactionCPU, area.Seconds, cpu/profilesWhole)
		measurePush(b)
		if _, err := blocksIn(dir, 1); err != nil {
			return err
		}
		b.Add(1, naive, "bytes a profile: pushed, gzipped", area.Bytes, float64(gz)/profilesWhole)
		b.Add(1, ferula, "bytes a profile: flushed", area.Bytes, flushed/profilesWhole)
		b.Add(1, ferula, compactedBytes, area.Bytes, bytesBelow(filepath.Join(dir, "profiles"))/profilesWhole)
		b.Own("profiles/bytes-per-profile", 1, compactedBytes)
		return merges(ctx, b, s, pushed)
	})
}

const compactedBytes = "bytes a profile: compacted"

// blocksIn returns the files of the blocks in the directory of a store, which must be so many.
func blocksIn(dir string, want int) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "profiles", tenant, "*", "profiles.parquet"))
	if err == nil && len(files) != want {
		err = fmt.Errorf("%w: %d blocks, want %d", area.ErrUnequal, len(files), want)
	}
	return files, err
}

// bytesBelow returns the bytes of the blocks. The log is empty at that time.
func bytesBelow(dir string) (sum float64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				sum += float64(info.Size())
			}
		}
		return err
	})
	return sum
}

// pushAll pushes one profile at a time, from several clients at once.
func pushAll(ctx context.Context, s *store.Store, pushed []series.RawProfile) error {
	return proc.Parallel(clients, func(c int) error {
		for i := c; i < len(pushed); i += clients {
			if err := s.Append(ctx, tenant, pushed[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	})
}

func pushes(ctx context.Context, b *area.Bench, pushed []series.RawProfile) error {
	each := func(round int, side, what string, f func() error) error {
		t, err := used(f)
		b.Add(round, side, what, area.Seconds, t/float64(len(pushed)))
		return err
	}
	parse := func() error {
		for i := range pushed {
			p, err := googlepprof.ParseData(pushed[i].Raw)
			if err == nil && len(p.Sample) != samples {
				err = fmt.Errorf("%w: %d samples", area.ErrUnequal, len(p.Sample))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return b.EachRound(pushCPU, func(round int) error {
		if err := each(round, naive, pushCPU, parse); err != nil {
			return err
		}
		return inStore("", store.Options{}, func(s *store.Store, _ string) error {
			return errors.Join(
				each(round, ferula, pushCPU, func() error { return pushAll(ctx, s, pushed) }),
				each(round, ferula, flushCPU, func() error { return s.Flush(ctx) }))
		})
	})
}

func merges(ctx context.Context, b *area.Bench, s *store.Store, pushed []series.RawProfile) error {
	e := query.New(query.Options{}, s)
	few := &series.MergeRequest{Tenant: tenant, Type: heapType, StartMS: epochMS, EndMS: timeOf(profilesMerged-1) / 1e6}
	all := *few
	all.EndMS = epochMS + hourMS
	var want int64
	var merged *googlepprof.Profile
	naiveMerge := func() (err error) {
		merged, err = mergeNaively(pushed[:profilesMerged])
		return err
	}
	const what = "CPU: merge of 2,000 profiles"
	for round := 1; round <= b.Rounds; round++ {
		if round == 1 { // a run takes seconds, mostly for garbage collection
			t, err := used(naiveMerge)
			if err != nil {
				return err
			}
			b.Add(round, naive, what, area.Seconds, t)
			for _, sample := range merged.Sample {
				want += sample.Value[1]
			}
		}
		var got int64
		var nodes int
		t, err := used(func() error {
			flame, err := e.MergeFlame(ctx, few)
			if err != nil {
				return err
			}
			got, nodes = flame.Total, len(flame.Names)
			return errors.Join(flame.Warnings...)
		})
		if err != nil {
			return err
		}
		if got != want || nodes < functions {
			return fmt.Errorf("%w: the flame graph has %d of %d bytes and %d names", area.ErrUnequal, got, want, nodes)
		}
		b.Add(round, ferula, what, area.Seconds, t)
		if t, err = used(func() error { _, err := e.MergeFlame(ctx, &all); return err }); err != nil {
			return err
		}
		b.Add(round, ferula, "CPU: merge of 10,000 profiles", area.Seconds, t)
		one := all
		one.IDs = []series.ID{pushed[4711].ID}
		if t, err = times(func() error { _, err := e.MergeFlame(ctx, &one); return err }); err != nil {
			return err
		}
		b.Add(round, ferula, "time: one profile by its id", area.Seconds, t)
	}
	b.Measure("profiles/merge-vs-naive", b.Over(ferula, naive, what), what)
	return nil
}

// mergeNaively decodes every profile and merges them in groups, so that not all are in
// memory at once.
func mergeNaively(pushed []series.RawProfile) (sum *googlepprof.Profile, err error) {
	for len(pushed) > 0 {
		n := min(50, len(pushed))
		var group []*googlepprof.Profile
		if sum != nil {
			group = append(group, sum)
		}
		for i := range pushed[:n] {
			p, err := googlepprof.ParseData(pushed[i].Raw)
			if err != nil {
				return nil, err
			}
			group = append(group, p)
		}
		if sum, err = googlepprof.Merge(group); err != nil {
			return nil, err
		}
		pushed = pushed[n:]
	}
	return sum, nil
}
