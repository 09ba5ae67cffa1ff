package tsdb

import (
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
)

// notReady returns ErrNotReady for every append, so that a writer retries until the log is
// replayed.
type notReady struct{}

var _ storage.Appender = notReady{}

func (notReady) SetOptions(*storage.AppendOptions) {}

func (notReady) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReady) AppendExemplar(storage.SeriesRef, labels.Labels, exemplar.Exemplar) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReady) AppendHistogram(storage.SeriesRef, labels.Labels, int64, *histogram.Histogram, *histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReady) AppendHistogramSTZeroSample(storage.SeriesRef, labels.Labels, int64, int64, *histogram.Histogram, *histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReady) UpdateMetadata(storage.SeriesRef, labels.Labels, metadata.Metadata) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReady) AppendSTZeroSample(storage.SeriesRef, labels.Labels, int64, int64) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReady) Commit() error   { return ErrNotReady }
func (notReady) Rollback() error { return nil }

// notReadyV2 is notReady for the second appender interface.
type notReadyV2 struct{}

var _ storage.AppenderV2 = notReadyV2{}

func (notReadyV2) Append(storage.SeriesRef, labels.Labels, int64, int64, float64, *histogram.Histogram, *histogram.FloatHistogram, storage.AOptions) (storage.SeriesRef, error) {
	return 0, ErrNotReady
}

func (notReadyV2) Commit() error   { return ErrNotReady }
func (notReadyV2) Rollback() error { return nil }
