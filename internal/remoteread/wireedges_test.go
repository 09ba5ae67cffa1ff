package remoteread

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// chunkAt returns an XOR chunk with samples at these times.
func chunkAt(t *testing.T, times ...int64) []byte {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range times {
		app.Append(0, at, float64(i)+0.5)
	}
	return c.Bytes()
}

// A fast encoder is used for timestamps from floatFromMS to floatToMS. It must not be used if a timestamp may be
// outside of this range, on either side.
func TestAppendXORFloats_TimesAtTheEndsOfTheUsualRange(t *testing.T) {
	for _, tt := range []struct{ minMS, maxMS int64 }{
		{floatFromMS, floatToMS}, {floatFromMS - 1, floatToMS}, {floatFromMS, floatToMS + 1}, {floatFromMS - 1, floatToMS + 1},
		{0, floatToMS}, {floatFromMS, math.MaxInt64}, {math.MinInt64, floatToMS}, {-1, 1}, {floatToMS, floatToMS}, {floatFromMS, floatFromMS},
	} {
		chunk := chunkAt(t, tt.minMS, tt.maxMS)
		want := appendFloat(appendFloat(nil, tt.minMS, 0.5), tt.maxMS, 1.5)
		if got, n, err := appendXORFloats(nil, chunk, 2, tt.minMS, tt.maxMS); err != nil || n != 2 || !bytes.Equal(got, want) {
			t.Errorf("from %d to %d: %d, %v\n%x\n%x", tt.minMS, tt.maxMS, n, err, got, want)
		}
		// A sample outside of the given range is an error.
		if _, _, err := appendXORFloats(nil, chunk, 2, tt.minMS+1, tt.maxMS); !errors.Is(err, ErrCorrupt) {
			t.Errorf("from %d: %v", tt.minMS+1, err)
		}
		if _, _, err := appendXORFloats(nil, chunk, 2, tt.minMS, tt.maxMS-1); !errors.Is(err, ErrCorrupt) {
			t.Errorf("to %d: %v", tt.maxMS-1, err)
		}
	}
}

// The encoder writes two bytes more than it appends.
func TestAppendXORFloats_GrowsBuffersOfEveryCapacity(t *testing.T) {
	const at = 1_700_000_000_000
	for _, samples := range []int{1, 2, 5} {
		var times []int64
		var want []byte
		for i := range int64(samples) {
			times = append(times, at+i)
			want = appendFloat(want, at+i, float64(i)+0.5)
		}
		chunk := chunkAt(t, times...)
		for capacity := range samples*floatBytes + 12 {
			got, _, err := appendXORFloats(make([]byte, 0, capacity), chunk, samples, at, at+100)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d samples, capacity %d: %x, %v", samples, capacity, got, err)
			}
		}
	}
}

// A chunk with more samples than are wanted, over several batches.
func TestAppendXORFloats_StopsAfterTheWantedSamples(t *testing.T) {
	var times []int64
	for i := range int64(3*xorBatch + 1) {
		times = append(times, 1_700_000_000_000+i*1000)
	}
	chunk := chunkAt(t, times...)
	for n := range len(times) + 2 {
		got, count, err := appendXORFloats(nil, chunk, n, floatFromMS, floatToMS)
		if want := min(n, len(times)); err != nil || count != want || len(got) != want*floatBytes {
			t.Errorf("%d samples: %d, %d bytes, %v", n, count, len(got), err)
		}
	}
}

func TestAppendChunk_WithoutDataHasNoDataField(t *testing.T) {
	for _, data := range [][]byte{nil, {1}} {
		b := appendChunk(nil, 0, 0, 0, data)
		if len(b) != chunkSize(0, 0, 0, len(data)) || len(b) != 2+3*len(data) {
			t.Errorf("% x, size %d", b, chunkSize(0, 0, 0, len(data)))
		}
	}
}

func TestDecodeFrame_UnknownFieldsOfEveryWireTypeAreSkippedWhole(t *testing.T) {
	// Each is followed by a field that would be read wrong if too few or too many bytes were skipped.
	for _, unknown := range [][]byte{{9 << 3, 0x81, 1}, {9<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}, {9<<3 | 2, 3, 1, 2, 3}, {9<<3 | 5, 1, 2, 3, 4}} {
		payload := append(within(1), append(unknown, 2<<3, 7)...)
		if index, _, _, err := decodeFrame(payload, nil, nil); index != 7 || err != nil {
			t.Errorf("% x: %d, %v", unknown, index, err)
		}
	}
}
