package bucket

import "github.com/prometheus/client_golang/prometheus"

// shipMetrics have Thanos' names where Thanos has them: its alerts go on working.
type shipMetrics struct {
	syncs, syncFailures     prometheus.Counter
	uploads, uploadFailures prometheus.Counter
	corrupted, bytes        prometheus.Counter
	compactedDone, waiting  prometheus.Gauge
	lastSuccess             prometheus.Gauge
}

func newShipMetrics(reg prometheus.Registerer) shipMetrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	return shipMetrics{
		syncs:          counter("thanos_shipper_dir_syncs_total", "Looks at the folder that left nothing to do."),
		syncFailures:   counter("thanos_shipper_dir_sync_failures_total", "Looks at the folder that failed."),
		uploads:        counter("thanos_shipper_uploads_total", "Blocks uploaded."),
		uploadFailures: counter("thanos_shipper_upload_failures_total", "Uploads of a block that failed."),
		corrupted:      counter("thanos_shipper_corrupted_blocks_total", "Blocks found in the folder whose meta.json cannot be read."),
		compactedDone:  gauge("thanos_shipper_upload_compacted_done", "1 if compacted blocks are uploaded and all are."),
		bytes:          counter("ferula_shipper_uploaded_bytes_total", "Bytes of files uploaded."),
		waiting:        gauge("ferula_shipper_blocks_waiting", "Blocks that belong into the bucket and are not known to be there."),
		lastSuccess:    gauge("ferula_shipper_last_success_timestamp_seconds", "When a look at the folder last left nothing to do."),
	}
}
