package tsdb

import (
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
)

// notReady returns an error for every append, so that a writer retries until the log is
// replayed, or the disk has space.
type notReady struct{ err error }

var _ storage.Appender = notReady{}

func (notReady) SetOptions(*storage.AppendOptions) {}

func (n notReady) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendExemplar(storage.SeriesRef, labels.Labels, exemplar.Exemplar) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendHistogram(storage.SeriesRef, labels.Labels, int64, *histogram.Histogram, *histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendHistogramSTZeroSample(storage.SeriesRef, labels.Labels, int64, int64, *histogram.Histogram, *histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) UpdateMetadata(storage.SeriesRef, labels.Labels, metadata.Metadata) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendSTZeroSample(storage.SeriesRef, labels.Labels, int64, int64) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) Commit() error { return n.err }
func (notReady) Rollback() error { return nil }

// notReadyV2 is notReady for the second appender interface.
type notReadyV2 struct{ err error }

var _ storage.AppenderV2 = notReadyV2{}

func (n notReadyV2) Append(storage.SeriesRef, labels.Labels, int64, int64, float64, *histogram.Histogram, *histogram.FloatHistogram, storage.AOptions) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReadyV2) Commit() error { return n.err }
func (notReadyV2) Rollback() error { return nil }
