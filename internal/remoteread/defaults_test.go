package remoteread

import (
	"reflect"
	"testing"
)

// The package comment and docs/ops/remote-read.md name this size.
func TestMeasuredSeries_TakesTheDocumentedBytes(t *testing.T) {
	if size := reflect.TypeFor[measuredSeries]().Size(); size != 24 {
		t.Errorf("%d bytes a series, documented are 24", size)
	}
}
