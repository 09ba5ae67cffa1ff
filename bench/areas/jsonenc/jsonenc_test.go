package jsonenc

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
)

func TestEncoders_WriteTheSameBytes(t *testing.T) {
	for _, kind := range kinds {
		m := newMatrix(kind, 30)
		m[0].Floats[0].F, m[0].Floats[1].F, m[1].Floats[2].T = math.NaN(), math.Inf(-1), 1
		if err := compare(m, encoders()); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestCompare_UnequalAndEmptyOutputsAreErrors(t *testing.T) {
	off := func(w io.Writer, m promql.Matrix) error {
		m[0].Floats[0].F++
		defer func() { m[0].Floats[0].F-- }()
		return encodePeer(w, m)
	}
	if err := compare(newMatrix(blocks.Integers, 3), []encoder{{codec, 1, encodePeer}, {ferula, 1, off}}); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("got %v, want ErrUnequal", err)
	}
	if err := compare(nil, []encoder{{codec, 1, encodePeer}, {ferula, 1, encodePeer}}); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("got %v, want ErrEmpty", err)
	}
}

func TestDecoders_DecodeTheSameSamples(t *testing.T) {
	for _, kind := range kinds {
		m := newMatrix(kind, 5)
		m[0].Floats[1].F, m[1].Floats[2].T = math.Inf(-1), 1_007
		var body bytes.Buffer
		if err := encodePeer(&body, m); err != nil {
			t.Fatal(err)
		}
		for _, d := range decoders() {
			var into columns
			for range 2 { // the second response reuses the memory of the first
				if err := d.decode(body.Bytes(), &into); err != nil {
					t.Fatalf("%s, %s: %v", d.side, kind, err)
				}
			}
			if into.n != len(m) {
				t.Fatalf("%s, %s: %d series", d.side, kind, into.n)
			}
			for i := range m {
				if err := sameColumn(&into.of[i], m[i].Floats); err != nil {
					t.Errorf("%s, %s, series %d: %v", d.side, kind, i, err)
				}
			}
		}
	}
}

func TestSameColumn_OtherSamplesAreErrors(t *testing.T) {
	want := []promql.FPoint{{T: 1, F: 2}}
	for _, c := range []column{{}, {[]int64{1}, []float64{3}}, {[]int64{2}, []float64{2}}, {[]int64{1, 2}, []float64{2, 2}}} {
		if err := sameColumn(&c, want); !errors.Is(err, area.ErrUnequal) {
			t.Errorf("%v: got %v, want ErrUnequal", c, err)
		}
	}
}
