package profiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	rpprof "runtime/pprof"

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
	if err := pushes(ctx, b, "", pushed[:profilesPushed], heapType, sum(totals[:profilesPushed])); err != nil {
		return err
	}
	ofBench, want, err := recorded(pushed[:profilesMerged/4])
	if err == nil {
		err = pushes(ctx, b, ", recorded", ofBench, cpuType, want)
	}
	if err != nil {
		return fmt.Errorf("recorded profiles: %w", err)
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
		flushed, err := area.BytesBelow(filepath.Join(dir, "profiles"))
		if err != nil {
			return err
		}
		cpu, err := used(func() error { return s.Compact(ctx) })
		if err != nil {
			return err
		}
		b.Add(1, ferula, compactionCPU, area.Seconds, cpu/profilesWhole)
		measurePush(b)
		if _, err := blocksIn(dir, 1); err != nil {
			return err
		}
		compacted, err := area.BytesBelow(filepath.Join(dir, "profiles"))
		b.Add(1, naive, "bytes a profile: pushed, gzipped", area.Bytes, float64(gz)/profilesWhole)
		b.Add(1, ferula, "bytes a profile: flushed", area.Bytes, flushed/profilesWhole)
		b.Add(1, ferula, compactedBytes, area.Bytes, compacted/profilesWhole)
		b.Own("profiles/bytes-per-profile", 1, compactedBytes)
		return errors.Join(err, merges(ctx, b, s, pushed))
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

// pushes measures pushes and a flush. The values of a type must have this sum in the store.
func pushes(ctx context.Context, b *area.Bench, more string, pushed []series.RawProfile, of series.Type, want int64) error {
	each := func(round int, side, what string, f func() error) error {
		t, err := used(f)
		b.Add(round, side, what+more, area.Seconds, t/float64(len(pushed)))
		return err
	}
	parse := func() error {
		for i := range pushed {
			p, err := googlepprof.ParseData(pushed[i].Raw)
			if err == nil && (len(p.Sample) == 0 || more == "" && len(p.Sample) != samples) {
				err = fmt.Errorf("%w: %d samples", area.ErrUnequal, len(p.Sample))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return b.EachRound(pushCPU+more, func(round int) error {
		if err := each(round, naive, pushCPU, parse); err != nil {
			return err
		}
		return inStore("", store.Options{}, func(s *store.Store, _ string) error {
			err := errors.Join(
				each(round, ferula, pushCPU, func() error { return pushAll(ctx, s, pushed) }),
				each(round, ferula, flushCPU, func() error { return s.Flush(ctx) }))
			if err != nil {
				return err
			}
			flame, err := query.New(query.Options{}, s).MergeFlame(ctx, &series.MergeRequest{
				Tenant: tenant, Type: of, StartMS: epochMS, EndMS: epochMS + hourMS,
			})
			if err == nil && flame.Total != want {
				err = fmt.Errorf("%w: the profiles have %d, the store %d", area.ErrUnequal, want, flame.Total)
			}
			return err
		})
	})
}

// recordings of each type are made, and pushed again and again with other times and ids.
const recordings = 4

// recorded returns profiles that the runtime recorded of this process, as it merged some: of its CPU and of its heap, in turn.
// sum are the nanoseconds of those of CPU.
func recorded(merged []series.RawProfile) (pushed []series.RawProfile, sum int64, err error) {
	var made [][]byte
	var nanoseconds [recordings]int64
	for i := range recordings {
		var cpu, heap bytes.Buffer
		if err := rpprof.StartCPUProfile(&cpu); err != nil {
			return nil, 0, err
		}
		_, err := mergeNaively(merged)
		rpprof.StopCPUProfile()
		if err = errors.Join(err, rpprof.WriteHeapProfile(&heap)); err != nil {
			return nil, 0, err
		}
		p, err := googlepprof.ParseData(cpu.Bytes())
		if err != nil {
			return nil, 0, err
		}
		for _, s := range p.Sample {
			nanoseconds[i] += s.Value[1]
		}
		made = append(made, cpu.Bytes(), heap.Bytes())
	}
	for i := range profilesPushed {
		name := "memory"
		if i%2 == 0 {
			name, sum = "process_cpu", sum+nanoseconds[i%len(made)/2]
		}
		pushed = append(pushed, series.RawProfile{Labels: labelsOf(name, serviceName(0), i%8), ID: idOf(i), TimeNS: timeOf(i), Raw: made[i%len(made)]})
	}
	if sum == 0 {
		err = fmt.Errorf("%w: a CPU profile has no samples", area.ErrEmpty)
	}
	return pushed, sum, err
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
