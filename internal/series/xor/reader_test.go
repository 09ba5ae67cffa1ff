package xor

import (
	"errors"
	"testing"
)

func TestReader_ChunkWithoutHeaderIsAnError(t *testing.T) {
	for n := range headerBytes {
		var r Reader
		if err := r.Reset(make([]byte, n), 0); !errors.Is(err, errNoHeader) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if got, err := Read(&r, make([]Point, 3)); got != 0 || !errors.Is(err, errNoHeader) {
			t.Errorf("%d bytes: %d samples, %v", n, got, err)
		}
	}
	var r Reader
	if err := r.Reset(make([]byte, headerBytes), 0); err != nil || r.Samples() != 0 {
		t.Errorf("%d samples, %v", r.Samples(), err)
	}
	if got, err := Read(&r, make([]Point, 3)); got != 0 || err != nil {
		t.Errorf("%d samples, %v", got, err)
	}
}
