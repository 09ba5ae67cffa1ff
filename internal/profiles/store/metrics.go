package store

import (
	"cmp"
	"errors"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics of a store.
type metrics struct {
	pushes, failed, bytes     *instruments.Counter
	flushes, flushesFailed    *instruments.Counter
	lost                      *instruments.Counter
	compactions, compactFail  *instruments.Counter
	corrupt, newer            *instruments.Counter
	remoteOpened              *instruments.Counter
	overMemory, tenantsFailed *instruments.Counter
	setAside, gaps, torn      *instruments.Counter
	remoteDeleted             *instruments.Counter
	remoteDeleteFail          *instruments.Counter
	spansDropped              *instruments.Counter
	remoteOverlaps            *instruments.Gauge
}

// newMetrics registers the metrics in the set. If set is nil they are not exposed.
func newMetrics(set *instruments.Set) *metrics {
	set = cmp.Or(set, instruments.NewSet())
	counter := func(name, help string) *instruments.Counter {
		return process.Counter(set, "ferula_profiles_"+name, help)
	}
	return &metrics{
		remoteOverlaps: process.Gauge(set, "ferula_profiles_bucket_blocks_overlapping",
			"Number of profile blocks in the bucket whose profiles are partly in another block, too, where neither "+
				"replaces the other. Queries count these profiles twice.", nil),
		pushes:  counter("pushes_total", "Number of pushes stored."),
		failed:  counter("pushes_failed_total", "Number of pushes that could not be stored."),
		bytes:   counter("wal_bytes_total", "Number of bytes written to the write-ahead log of profiles."),
		flushes: counter("flushes_total", "Number of heads written as blocks."),
		flushesFailed: counter("flushes_failed_total",
			"Number of failed attempts to write a head as a block. The head is kept and retried."),
		compactions: counter("compactions_total", "Number of compactions of profile blocks."),
		compactFail: counter("compactions_failed_total", "Number of failed compactions of profile blocks."),
		corrupt:     counter("blocks_corrupt_total", "Number of corrupt blocks, which are skipped."),
		newer: counter("blocks_newer_total",
			"Number of blocks of a newer version of ferula, which are skipped and kept. A block in the bucket is counted at "+
				"each listing."),
		remoteOpened: counter("bucket_blocks_opened_total", "Number of profile block indexes read from the bucket."),
		remoteDeleted: counter("bucket_blocks_deleted_total",
			"Number of profile blocks deleted from the bucket: replaced by a compacted block, or older than the retention "+
				"time of the bucket."),
		remoteDeleteFail: counter("bucket_deletions_failed_total",
			"Number of failed deletions of profile blocks in the bucket, which are retried."),
		spansDropped: counter("spans_dropped_total", "Number of spans of samples that were not stored because a profile "+
			"has too many. Their samples are stored."),
		overMemory: counter("pushes_without_memory_total",
			"Number of pushes rejected because the heads of all tenants have reached their memory limit."),
		tenantsFailed: counter("tenants_open_failed_total", "Number of failures to open a tenant, which are retried."),
		setAside: counter("wal_records_set_aside_total",
			"Number of records of the write-ahead log that could not be replayed and were set aside."),
		gaps: counter("wal_gaps_total", "Number of damaged parts of the write-ahead log that replay has set aside."),
		torn: counter("wal_torn_ends_total", "Number of segments of the write-ahead log that ended within a record at replay."),
		lost: counter("blocks_dropped_unshipped_total",
			"Number of blocks removed by size retention before they were shipped to the bucket."),
	}
}

// skipped counts a block that is left out because of an error.
func (m *metrics) skipped(err error) {
	switch {
	case errors.Is(err, profiles.ErrNewer):
		m.newer.Inc()
	case errors.Is(err, profiles.ErrCorrupt):
		m.corrupt.Inc()
	}
}

func (m *metrics) committed(frames, pushes int, err error) {
	if err != nil {
		m.failed.Add(pushes)
		return
	}
	m.pushes.Add(pushes)
	m.bytes.Add(frames)
}

// memory exposes the use of the memory budget by kind.
func (m *metrics) memory(set *instruments.Set, s *Store) {
	if set == nil {
		return
	}
	set.Describe("ferula_profiles_memory_bytes", "Estimated memory of profiles, by kind.", "bytes")
	for kind, value := range map[string]func() int64{"heads": s.memory.heads.Load, "queries": s.memory.leased.Load,
		"symbols": s.memory.symbols.Load} {
		set.NewGauge(`ferula_profiles_memory_bytes{kind="`+kind+`"}`, func() float64 { return float64(value()) })
	}
	set.Describe("ferula_profiles_memory_limit_bytes", "Limit of ferula_profiles_memory_bytes, all kinds together.",
		"bytes")
	set.NewGauge("ferula_profiles_memory_limit_bytes", func() float64 { return float64(s.memory.max) })
	process.Gauge(set, "ferula_profiles_tenants_unavailable", "Number of tenants whose requests get status 503, because "+
		"their write-ahead log is being replayed or they cannot be opened.", func() float64 {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return float64(len(s.failed))
	})
}
