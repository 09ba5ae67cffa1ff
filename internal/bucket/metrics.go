package bucket

import (
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

// shipMetrics use Thanos' names where they exist, so that alerts of Thanos keep working.
type shipMetrics struct {
	syncs, syncFailures     *metrics.Counter
	uploads, uploadFailures *metrics.Counter
	corrupted, bytes, lost  *metrics.Counter
	compactedDone, waiting  *metrics.Gauge
	lastSuccess             *metrics.Gauge
}

func newShipMetrics(set *metrics.Set) shipMetrics {
	return shipMetrics{
		syncs: process.Counter(set, "thanos_shipper_dir_syncs_total", "Number of successful syncs of the directory."),
		syncFailures: process.Counter(set, "thanos_shipper_dir_sync_failures_total",
			"Number of failed syncs of the directory."),
		uploads:        process.Counter(set, "thanos_shipper_uploads_total", "Number of blocks uploaded."),
		uploadFailures: process.Counter(set, "thanos_shipper_upload_failures_total", "Number of failed block uploads."),
		corrupted: process.Counter(set, "thanos_shipper_corrupted_blocks_total",
			"Number of blocks in the directory whose meta.json could not be read."),
		compactedDone: process.Gauge(set, "thanos_shipper_upload_compacted_done",
			"1 if uploading compacted blocks is enabled and all are uploaded.", nil),
		bytes: process.Counter(set, "ferula_shipper_uploaded_bytes_total", "Number of bytes of files uploaded."),
		lost: process.Counter(set, "ferula_shipper_blocks_lost_total",
			"Number of blocks deleted from disk before they were shipped."),
		waiting: process.Gauge(set, "ferula_shipper_blocks_waiting", "Number of blocks waiting for upload.", nil),
		lastSuccess: process.Gauge(set, "ferula_shipper_last_success_timestamp_seconds",
			"Timestamp of the last successful sync of the directory.", nil),
	}
}
