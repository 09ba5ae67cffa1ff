package bucket

import "github.com/ferula-io/ferula/metrics"

// shipMetrics have Thanos' names where Thanos has them: its alerts go on working.
type shipMetrics struct {
	syncs, syncFailures     *metrics.Counter
	uploads, uploadFailures *metrics.Counter
	corrupted, bytes, lost  *metrics.Counter
	compactedDone, waiting  *metrics.Gauge
	lastSuccess             *metrics.Gauge
}

func counterOf(set *metrics.Set, name, help string) *metrics.Counter {
	set.Describe(name, help, "")
	return set.NewCounter(name)
}

func gaugeOf(set *metrics.Set, name, help string) *metrics.Gauge {
	set.Describe(name, help, "")
	return set.NewGauge(name, nil)
}

func newShipMetrics(set *metrics.Set) shipMetrics {
	return shipMetrics{
		syncs:          counterOf(set, "thanos_shipper_dir_syncs_total", "Looks at the folder that left nothing to do."),
		syncFailures:   counterOf(set, "thanos_shipper_dir_sync_failures_total", "Looks at the folder that failed."),
		uploads:        counterOf(set, "thanos_shipper_uploads_total", "Blocks uploaded."),
		uploadFailures: counterOf(set, "thanos_shipper_upload_failures_total", "Uploads of a block that failed."),
		corrupted:      counterOf(set, "thanos_shipper_corrupted_blocks_total", "Blocks found in the folder whose meta.json cannot be read."),
		compactedDone:  gaugeOf(set, "thanos_shipper_upload_compacted_done", "1 if compacted blocks are uploaded and all are."),
		bytes:          counterOf(set, "ferula_shipper_uploaded_bytes_total", "Bytes of files uploaded."),
		lost:           counterOf(set, "ferula_shipper_blocks_lost_total", "Blocks that were deleted from the disk before they were shipped."),
		waiting:        gaugeOf(set, "ferula_shipper_blocks_waiting", "Blocks that belong into the bucket and are not known to be there."),
		lastSuccess:    gaugeOf(set, "ferula_shipper_last_success_timestamp_seconds", "When a look at the folder last left nothing to do."),
	}
}
