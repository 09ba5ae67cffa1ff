package profiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/bench/area"
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
func whole(ctx context.Context, env area.Env, out *area.Outcome) (err error) {
	pushed, totals, err := heapPushes(profilesWhole, services)
	if err != nil {
		return err
	}
	gz := 0
	for i := range pushed {
		gz += len(pushed[i].Raw)
	}
	env.Logf("%d profiles of %d bytes, gzipped", len(pushed), gz/len(pushed))
	if err := pushes(ctx, env, out, pushed[:profilesPushed]); err != nil {
		return err
	}
	if err := pushesOverHTTP(ctx, env, out, pushed[:profilesPushed], totals); err != nil {
		return err
	}
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	s, err := openStore(dir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for part := range 4 { // four blocks, which compaction merges into one
		if err := pushAll(ctx, s, pushed[part*len(pushed)/4:(part+1)*len(pushed)/4]); err != nil {
			return err
		}
		if err := s.Flush(ctx); err != nil {
			return err
		}
	}
	flushed := bytesBelow(filepath.Join(dir, "profiles"))
	cpu, err := used(func() error { return s.Compact(ctx) })
	if err != nil {
		return err
	}
	out.Recorder.Add(1, ferula, compactionCPU, area.Seconds, cpu/profilesWhole)
	measurePush(out)
	if n, err := filepath.Glob(filepath.Join(dir, "profiles", tenant, "*", "profiles.parquet")); err != nil || len(n) != 1 {
		return fmt.Errorf("%d blocks after compaction: %w", len(n), err)
	}
	out.Recorder.Add(1, naive, "bytes a profile: pushed, gzipped", area.Bytes, float64(gz)/profilesWhole)
	out.Recorder.Add(1, ferula, "bytes a profile: flushed", area.Bytes, flushed/profilesWhole)
	compacted := bytesBelow(filepath.Join(dir, "profiles"))
	out.Recorder.Add(1, ferula, "bytes a profile: compacted", area.Bytes, compacted/profilesWhole)
	out.Measure("profiles/bytes-per-profile", compacted/profilesWhole, "bytes a profile: compacted")
	return merges(ctx, env, out, s, pushed)
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
	errs := make([]error, clients)
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			for i := c; i < len(pushed) && errs[c] == nil; i += clients {
				errs[c] = s.Append(ctx, tenant, pushed[i:i+1])
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func pushes(ctx context.Context, env area.Env, out *area.Outcome, pushed []series.RawProfile) error {
	const what = pushCPU
	for round := 1; round <= env.Rounds; round++ {
		parse, err := used(func() error {
			for i := range pushed {
				p, err := googlepprof.ParseData(pushed[i].Raw)
				if err != nil {
					return err
				}
				if len(p.Sample) != samples {
					return fmt.Errorf("%w: %d samples", area.ErrUnequal, len(p.Sample))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		out.Recorder.Add(round, naive, what, area.Seconds, parse/float64(len(pushed)))
		if err := pushOnce(ctx, out, round, what, pushed); err != nil {
			return err
		}
	}
	return nil
}

func pushOnce(ctx context.Context, out *area.Outcome, round int, what string, pushed []series.RawProfile) (err error) {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	s, err := openStore(dir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	push, err := used(func() error { return pushAll(ctx, s, pushed) })
	if err != nil {
		return err
	}
	out.Recorder.Add(round, ferula, what, area.Seconds, push/float64(len(pushed)))
	flush, err := used(func() error { return s.Flush(ctx) })
	out.Recorder.Add(round, ferula, flushCPU, area.Seconds, flush/float64(len(pushed)))
	return err
}

func merges(ctx context.Context, env area.Env, out *area.Outcome, s *store.Store, pushed []series.RawProfile) error {
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
	for round := 1; round <= env.Rounds; round++ {
		if round == 1 { // a run takes seconds, mostly for garbage collection
			t, err := used(naiveMerge)
			if err != nil {
				return err
			}
			out.Recorder.Add(round, naive, what, area.Seconds, t)
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
		out.Recorder.Add(round, ferula, what, area.Seconds, t)
		if t, err = used(func() error { _, err := e.MergeFlame(ctx, &all); return err }); err != nil {
			return err
		}
		out.Recorder.Add(round, ferula, "CPU: merge of 10,000 profiles", area.Seconds, t)
		one := all
		one.IDs = []series.ID{pushed[4711].ID}
		if t, err = times(func() error { _, err := e.MergeFlame(ctx, &one); return err }); err != nil {
			return err
		}
		out.Recorder.Add(round, ferula, "time: one profile by its id", area.Seconds, t)
	}
	out.Measure("profiles/merge-vs-naive", out.Recorder.Over(ferula, naive, what), what)
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
