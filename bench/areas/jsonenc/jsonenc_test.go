package jsonenc

import (
	"errors"
	"io"
	"math"
	"testing"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
)

func TestEncoders_WriteTheSameBytes(t *testing.T) {
	encoders := []encoder{{codec, encodePeer}, {ferula, newStreamer().encode}}
	for _, kind := range []blocks.Values{blocks.Floats15, blocks.Integers, blocks.Decimals2} {
		m := newMatrix(kind, 30)
		m[0].Floats[0].F, m[0].Floats[1].F, m[1].Floats[2].T = math.NaN(), math.Inf(-1), 1
		if err := compare(m, encoders); err != nil {
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
	if err := compare(newMatrix(blocks.Integers, 3), []encoder{{codec, encodePeer}, {ferula, off}}); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("got %v, want ErrUnequal", err)
	}
	if err := compare(nil, []encoder{{codec, encodePeer}, {ferula, encodePeer}}); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("got %v, want ErrEmpty", err)
	}
}
