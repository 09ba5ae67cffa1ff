package profile

import "github.com/prometheus/client_golang/prometheus"

// metrics are a store's own.
type metrics struct {
	pushes, failed, bytes    prometheus.Counter
	flushes, flushesFailed   prometheus.Counter
	compactions, compactFail prometheus.Counter
	corrupt                  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "ferula", Subsystem: "profiles", Name: name, Help: help})
	}
	m := &metrics{
		pushes:        counter("pushes_total", "Pushes that were stored."),
		failed:        counter("pushes_failed_total", "Pushes that could not be stored."),
		bytes:         counter("log_bytes_total", "Bytes written to the log of profiles."),
		flushes:       counter("flushes_total", "Heads written as blocks."),
		flushesFailed: counter("flushes_failed_total", "Heads that could not be written as blocks, and are tried again."),
		compactions:   counter("compactions_total", "Merges of blocks."),
		compactFail:   counter("compactions_failed_total", "Merges of blocks that failed."),
		corrupt:       counter("blocks_corrupt_total", "Blocks found corrupt, which are left out."),
	}
	if reg != nil {
		reg.MustRegister(m.pushes, m.failed, m.bytes, m.flushes, m.flushesFailed, m.compactions, m.compactFail, m.corrupt)
	}
	return m
}

func (m *metrics) committed(frames, pushes int, err error) {
	if err != nil {
		m.failed.Add(float64(pushes))
		return
	}
	m.pushes.Add(float64(pushes))
	m.bytes.Add(float64(frames))
}
