package storeapi

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// serveFew serves n series with a chunk of 100 bytes in each of these parts of a store, and returns the address.
func serveFew(t *testing.T, n int, of ...int64) string {
	t.Helper()
	var all []stores.Series
	for i := range n {
		instance := fmt.Sprintf("%s-%05d", strings.Repeat("x", 50), i)
		one := stores.Series{Labels: labelenc.Append(nil, labels.FromStrings("__name__", labelSpec.Metric, "instance", instance))}
		for _, part := range of {
			from := labelSpec.StartMS + part*partMS
			one.Chunks = append(one.Chunks, series.Chunk{MinMS: from, MaxMS: from + 1000, Encoding: chunkenc.EncXOR, Data: make([]byte, 100)})
		}
		all = append(all, one)
	}
	address, stop, err := serveLate(&stores.Memory{Select: stores.Held(all)}, storeDelay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return address
}

func TestReceiveLabels_CountsNoChunks(t *testing.T) {
	address := serveFew(t, 100, 0, 1, 2)
	plain := storeapi.ClientOptions{NoDeltas: true}
	begun := time.Now()
	n, whole, d, err := receiveLabels(t.Context(), address, plain, false)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < storeDelay {
		t.Errorf("a response took %v, less than the delay", took)
	}
	nAlone, alone, _, err := receiveLabels(t.Context(), address, plain, true)
	if err != nil {
		t.Fatal(err)
	}
	// The lengths before a series and before a message take a byte or two more if there are chunks.
	if more := whole - alone; n != 100 || nAlone != 100 || more < 0 || more > 2*101 {
		t.Errorf("with chunks %d bytes, without %d", whole, alone)
	}
	if alone < 100*50 {
		t.Errorf("%d bytes for 100 labels of 55 bytes", alone)
	}
	_, coded, other, err := receiveLabels(t.Context(), address, storeapi.ClientOptions{}, false)
	if err != nil || other.Sum() != d.Sum() || coded*4 > whole {
		t.Errorf("as differences %d bytes, plain %d, equal %t; %v", coded, whole, other.Sum() == d.Sum(), err)
	}
	if _, _, _, err := receiveLabels(t.Context(), serveFew(t, 1, 0, 1), storeapi.ClientOptions{}, false); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("without chunks of the head: %v", err)
	}
}

func TestLabelBytesOf_OtherSeriesAreAnError(t *testing.T) {
	few, more := serveFew(t, 3, 0, 1, 2), serveFew(t, 4, 0, 1, 2)
	b := &bench{Bench: area.New(Area, area.Env{Log: io.Discard})}
	for what, s := range map[string]shape{
		"other series than the peer's": {series: 3, peer: more, own: few}, "a series is missing": {series: 4, own: few},
	} {
		if _, err := b.labelBytesOf(t.Context(), s, false); !errors.Is(err, area.ErrUnequal) {
			t.Errorf("%s: %v", what, err)
		}
	}
	equal := &bench{Bench: area.New(Area, area.Env{Log: io.Discard})}
	what, err := equal.labelBytesOf(t.Context(), shape{series: 3, peer: few, own: few}, false)
	if ratio := equal.Median(ferula, what); err != nil || !(ratio > 0 && ratio < 1) {
		t.Errorf("equal series: %v, %q, %v", ratio, what, err)
	}
}

func TestDurations_OtherStoresAreAnError(t *testing.T) {
	c, err := stores.Dial(serveFew(t, disjointSpec.Series, 0), stores.LikeThanos)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := durations(t.Context(), c, 1); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("one store instead of eight: %v", err)
	}
}
