package fanout

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// relax decides what stores may leave out of the chunks of a selection, and which of the remaining ones they may join.
//
// An instant selector uses the last sample at or before each step, and stores of ferula can leave out the others
// (SeriesRequest.Steps). Chunks of replicas that overlap need all samples: deduplication chooses a replica by the
// gaps between samples. So all samples are requested if the Info of the stores announces several replicas for the
// time range. If chunks overlap nevertheless, they are selected again as a whole. The same holds for windows of range
// selectors, for which stores can send summaries of chunks (SeriesRequest.Summaries).
//
// Only the chunks of one block are joined if the Info of the stores announces the same data twice: joined chunks of two
// stores differ if one of the stores has fewer of these chunks, and different chunks overlap. A summary is of one chunk
// then, so that unite finds the same chunk of another store.
func (f *Fanout) relax(sr *storeapi.SeriesRequest, infos []*storeapi.Info) lacking {
	if f.unsummarized.on() {
		sr.Summaries = nil
	}
	if sr.Steps == nil && sr.Summaries == nil || f.whole.on() || severalReplicas(infos, *sr) {
		sr.Steps, sr.Summaries, sr.JoinMS = nil, nil, 0
		return lacking{}
	}
	if f.apart.on() {
		sr.JoinMS = 0
	} else if sameDataTwice(infos, *sr) {
		sr.JoinMS = min(sr.JoinMS, blockMS)
	}
	if s := sr.Summaries; s != nil && sr.JoinMS < storeapi.JoinAny {
		apart := *s
		apart.Apart, sr.Summaries, sr.JoinMS = true, &apart, 0
	}
	return lacking{true, sr.JoinMS > 0}
}

// blockMS is the time range of the shortest blocks. Blocks, and the chunks of a head, end at its multiples.
const blockMS = 2 * 60 * 60 * 1000

// lacking is what stores may have left out of the chunks of a selection: samples between steps, and the borders of
// chunks, which they join.
type lacking struct{ samples, borders bool }

// overlapPause is the time for which a pause holds, so that not every query reads the stores twice.
const overlapPause = 5 * time.Minute

// pause is an optimization that is off for a while.
type pause struct{ until atomic.Int64 } // Unix ns

func (p *pause) begin()   { p.until.Store(time.Now().Add(overlapPause).UnixNano()) }
func (p *pause) on() bool { return time.Now().UnixNano() < p.until.Load() }

// noteOverlap notes that chunks overlapped that lack samples. Joined chunks may be the cause: one of two stores with
// the same data has a part of a block only.
func (f *Fanout) noteOverlap(l lacking) {
	if l.borders {
		f.apart.begin()
	} else {
		f.whole.begin()
	}
}

// severalReplicas reports whether, by their Info, the stores may have several replicas of a series in the time range of
// a request.
func severalReplicas(infos []*storeapi.Info, sr storeapi.SeriesRequest) bool {
	if len(sr.WithoutReplicaLabels) == 0 {
		return false
	}
	replica := func(_ int, set labels.Labels) uint64 { return set.Hash() }
	all, complete := holdings(infos, sr, replica)
	return !complete || all.anyTwo(func(a, b storeapi.TimeRange) bool {
		return a.MinMS <= b.MaxMS && b.MinMS <= a.MaxMS
	})
}

// sameDataTwice reports whether, by their Info, two stores may have series with the same external labels, replica
// labels aside, in the same time, within the time range of a request. The end of a block is exclusive, and announced as
// if it were the time of a sample.
func sameDataTwice(infos []*storeapi.Info, sr storeapi.SeriesRequest) bool {
	if len(infos) < 2 {
		return false
	}
	store := func(i int, _ labels.Labels) uint64 { return uint64(i) }
	all, complete := holdings(infos, sr, store)
	return !complete || slices.ContainsFunc(infos, unnamed) || all.anyTwo(func(a, b storeapi.TimeRange) bool {
		return max(a.MinMS, b.MinMS, sr.MinMS) < min(a.MaxMS, b.MaxMS, sr.MaxMS)
	})
}

// unnamed reports whether a store announces no external labels: it may have any.
func unnamed(info *storeapi.Info) bool { return len(info.Store.TSDBs) == 0 && len(info.LabelSets) == 0 }

// ownership has the times of data with the same external labels, replica labels aside: the key is a hash of
// these labels, then what tells the holders apart. Hashes that are equal by chance cost samples that are not needed,
// or a second selection.
type ownership map[uint64]map[uint64]storeapi.TimeRange

// holdings returns what the stores announce for the time range of a request. holder returns what tells two holders of
// the same data apart, by the index of the store or its external labels. Between two blocks of a holder may be a block
// of another, so the time of a holder is from its first to its last block. complete is false if a store has no Info.
func holdings(infos []*storeapi.Info, sr storeapi.SeriesRequest,
	holder func(store int, set labels.Labels) uint64) (all ownership, complete bool) {
	names := slices.Sorted(slices.Values(sr.WithoutReplicaLabels))
	all = ownership{}
	var buf []byte
	for i, info := range infos {
		if info == nil || info.Store == nil {
			return nil, false
		}
		for _, db := range announced(info) {
			if db.MinMS > sr.MaxMS || db.MaxMS < sr.MinMS {
				continue
			}
			var data uint64
			data, buf = db.Labels.HashWithoutLabels(buf[:0], names...)
			if all[data] == nil {
				all[data] = map[uint64]storeapi.TimeRange{}
			}
			times, who := db.TimeRange, holder(i, db.Labels)
			if one, ok := all[data][who]; ok {
				times.MinMS, times.MaxMS = min(times.MinMS, one.MinMS), max(times.MaxMS, one.MaxMS)
			}
			all[data][who] = times
		}
	}
	return all, true
}

// announced returns the TSDBs of a store, or each set of its external labels with the time range of the store.
func announced(info *storeapi.Info) (all []storeapi.TSDBInfo) {
	if len(info.Store.TSDBs) > 0 {
		return info.Store.TSDBs
	}
	for _, set := range info.LabelSets {
		all = append(all, storeapi.TSDBInfo{Labels: set, TimeRange: info.Store.TimeRange})
	}
	return all
}

// anyTwo reports whether f is true for the times of two holders of the same data.
func (o ownership) anyTwo(f func(a, b storeapi.TimeRange) bool) bool {
	for _, times := range o {
		for one, a := range times {
			for other, b := range times {
				if one != other && f(a, b) {
					return true
				}
			}
		}
	}
	return false
}
