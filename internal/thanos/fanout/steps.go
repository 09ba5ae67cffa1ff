package fanout

import (
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// An instant selector uses the last sample at or before each step, and stores of ferula can leave out the others
// (SeriesRequest.Steps). Chunks of replicas that overlap need all samples: deduplication chooses a replica by the
// gaps between samples. So no samples are left out if the Info of the stores announces several replicas for the time
// range. If chunks overlap nevertheless, they are selected again as a whole.

// What remains of successive chunks may also be joined (SeriesRequest.JoinChunks), unless the Info of the stores
// announces the same data twice: joined chunks of two stores differ if one of the stores has fewer chunks, and
// different chunks overlap.

// overlapPause is the time in which no samples are left out after chunks have overlapped, so that not every query
// reads the stores twice.
const overlapPause = 5 * time.Minute

// noteOverlap notes that chunks overlapped that lack samples.
func (f *Fanout) noteOverlap() { f.wholeUntil.Store(time.Now().Add(overlapPause).UnixNano()) }

// needsWhole reports whether the stores must leave out no samples.
func (f *Fanout) needsWhole(infos []*storeapi.Info, sr storeapi.SeriesRequest) bool {
	return time.Now().UnixNano() < f.wholeUntil.Load() || severalReplicas(infos, sr)
}

// severalReplicas reports whether, by their Info, the stores have several replicas of a series in the time range of
// a request.
func severalReplicas(infos []*storeapi.Info, sr storeapi.SeriesRequest) bool {
	if len(sr.WithoutReplicaLabels) == 0 {
		return false
	}
	names := slices.Sorted(slices.Values(sr.WithoutReplicaLabels))
	type replica struct {
		hash  uint64 // of all labels
		times storeapi.TimeRange
	}
	seen := map[uint64]replica{} // by the hash of the labels without replica labels
	var buf []byte
	another := func(set labels.Labels, times storeapi.TimeRange) bool {
		if times.MinMS > sr.MaxMS || times.MaxMS < sr.MinMS {
			return false
		}
		var key uint64
		key, buf = set.HashWithoutLabels(buf[:0], names...)
		one, known := seen[key]
		if !known {
			seen[key] = replica{set.Hash(), times}
			return false
		}
		overlap := times.MinMS <= one.times.MaxMS && times.MaxMS >= one.times.MinMS
		if set.Hash() != one.hash && overlap {
			return true
		}
		one.times.MinMS, one.times.MaxMS = min(one.times.MinMS, times.MinMS), max(one.times.MaxMS, times.MaxMS)
		seen[key] = one
		return false
	}
	return slices.ContainsFunc(infos, func(info *storeapi.Info) bool { return anySet(info, another) })
}

// anySet reports whether f is true for a set of external labels that a store announces with its time range. It is
// true for a store without Info.
func anySet(info *storeapi.Info, f func(set labels.Labels, times storeapi.TimeRange) bool) bool {
	switch {
	case info == nil || info.Store == nil:
		return true
	case len(info.Store.TSDBs) > 0:
		return slices.ContainsFunc(info.Store.TSDBs, func(db storeapi.TSDBInfo) bool { return f(db.Labels, db.TimeRange) })
	}
	return slices.ContainsFunc(info.LabelSets, func(set labels.Labels) bool { return f(set, info.Store.TimeRange) })
}

// sameDataTwice reports whether, by their Info, two stores may have series with the same external labels, replica
// labels aside, in the same time, within the time range of a request. A store that announces no external labels may
// have any. Between two blocks of one store may be a block of another, so the time of a store is that from its first
// to its last block. The end of a block is exclusive, and announced as if it were the time of a sample.
func sameDataTwice(infos []*storeapi.Info, sr storeapi.SeriesRequest) bool {
	if len(infos) < 2 {
		return false
	}
	names := slices.Sorted(slices.Values(sr.WithoutReplicaLabels))
	// by the hash of the labels without replica labels, a range for each store before
	seen := map[uint64][]storeapi.TimeRange{}
	var buf []byte
	for _, info := range infos {
		own := map[uint64]storeapi.TimeRange{}
		unknown := anySet(info, func(set labels.Labels, times storeapi.TimeRange) bool {
			times.MinMS, times.MaxMS = max(times.MinMS, sr.MinMS), min(times.MaxMS, sr.MaxMS)
			if times.MinMS > times.MaxMS {
				return false
			}
			var key uint64
			key, buf = set.HashWithoutLabels(buf[:0], names...)
			if one, ok := own[key]; ok {
				times.MinMS, times.MaxMS = min(times.MinMS, one.MinMS), max(times.MaxMS, one.MaxMS)
			}
			own[key] = times
			return false
		})
		if unknown || len(info.Store.TSDBs) == 0 && len(info.LabelSets) == 0 {
			return true
		}
		for key, times := range own {
			if slices.ContainsFunc(seen[key], func(s storeapi.TimeRange) bool {
				return max(s.MinMS, times.MinMS) < min(s.MaxMS, times.MaxMS)
			}) {
				return true
			}
			seen[key] = append(seen[key], times)
		}
	}
	return false
}
