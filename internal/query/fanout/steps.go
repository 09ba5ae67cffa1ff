package fanout

import (
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// An instant selector uses the last sample at or before each step, and stores of ferula can leave out the others
// (SeriesRequest.Steps). Chunks of replicas that overlap need all samples: deduplication chooses a replica by the gaps between
// samples. So no samples are left out if the Info of the stores announces several replicas for the time range. If chunks overlap
// nevertheless, they are selected again as a whole.

// overlapPause is the time in which no samples are left out after chunks have overlapped, so that not every query
// reads the stores twice.
const overlapPause = 5 * time.Minute

// noteOverlap notes that chunks overlapped that lack samples.
func (f *Fanout) noteOverlap() { f.wholeUntil.Store(time.Now().Add(overlapPause).UnixNano()) }

// needsWhole reports whether the stores must leave out no samples.
func (f *Fanout) needsWhole(infos []*storeapi.Info, sr storeapi.SeriesRequest) bool {
	return time.Now().UnixNano() < f.wholeUntil.Load() || severalReplicas(infos, sr)
}

// severalReplicas reports whether, by their Info, the stores have several replicas of a series in the time range of a request.
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
	for _, info := range infos {
		if info == nil || info.Store == nil {
			return true
		}
		for _, db := range info.Store.TSDBs {
			if another(db.Labels, db.TimeRange) {
				return true
			}
		}
		for _, set := range info.LabelSets {
			if len(info.Store.TSDBs) == 0 && another(set, info.Store.TimeRange) {
				return true
			}
		}
	}
	return false
}
