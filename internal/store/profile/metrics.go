package profile

import instruments "github.com/ferula-io/ferula/metrics"

// metrics are a store's own.
type metrics struct {
	pushes, failed, bytes    *instruments.Counter
	flushes, flushesFailed   *instruments.Counter
	lost                     *instruments.Counter
	compactions, compactFail *instruments.Counter
	corrupt, remoteOpened    *instruments.Counter
	noRoom, tenantsFailed    *instruments.Counter
	setAside, gaps, torn     *instruments.Counter
}

// newMetrics makes them in the set; set may be nil, then nobody sees them.
func newMetrics(set *instruments.Set) *metrics {
	if set == nil {
		set = instruments.NewSet()
	}
	counter := func(name, help string) *instruments.Counter {
		set.Describe("ferula_profiles_"+name, help, "")
		return set.NewCounter("ferula_profiles_" + name)
	}
	return &metrics{
		pushes:        counter("pushes_total", "Pushes that were stored."),
		failed:        counter("pushes_failed_total", "Pushes that could not be stored."),
		bytes:         counter("log_bytes_total", "Bytes written to the log of profiles."),
		flushes:       counter("flushes_total", "Heads written as blocks."),
		flushesFailed: counter("flushes_failed_total", "Heads that could not be written as blocks, and are tried again."),
		compactions:   counter("compactions_total", "Merges of blocks."),
		compactFail:   counter("compactions_failed_total", "Merges of blocks that failed."),
		corrupt:       counter("blocks_corrupt_total", "Blocks found corrupt, which are left out."),
		remoteOpened:  counter("bucket_blocks_opened_total", "Indexes of profile blocks read from the bucket."),
		noRoom:        counter("pushes_without_memory_total", "Pushes refused since the heads of all tenants have as much memory as they may."),
		tenantsFailed: counter("tenants_open_failed_total", "Failures to open a tenant, which is tried again."),
		setAside:      counter("log_records_set_aside_total", "Records of the log that could not be used at a start and were set aside."),
		gaps:          counter("log_gaps_total", "Parts of the log found damaged at a start, which were set aside."),
		torn:          counter("log_torn_ends_total", "Segments of the log found at a start that end in the middle of a record."),
		lost:          counter("blocks_dropped_unshipped_total", "Blocks removed for want of room before they were in the bucket."),
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
