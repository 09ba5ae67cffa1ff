package promjson

import (
	"fmt"
	"math/big"
	"strconv"
	"testing"
)

func TestTables_EqualTheirDefinition(t *testing.T) {
	one, tenth := big.NewRat(1, 1), big.NewRat(1, 10)
	for i, s := range scales {
		// The unit of the exponent, divided by 10^exp.
		want := new(big.Rat).SetInt64(1)
		two, ten := big.NewRat(2, 1), big.NewRat(10, 1)
		for e := minExponent + i - 1075; e != 0; {
			if e > 0 {
				want.Mul(want, two)
				e--
			} else {
				want.Quo(want, two)
				e++
			}
		}
		for e := s.exp; e != 0; {
			if e > 0 {
				want.Quo(want, ten)
				e--
			} else {
				want.Mul(want, ten)
				e++
			}
		}
		if want.Cmp(one) >= 0 || want.Cmp(tenth) < 0 {
			t.Errorf("scale %d is %s", i, want.FloatString(3))
		}
		have := new(big.Int).Lsh(new(big.Int).SetUint64(s.hi), 64)
		have.Add(have, new(big.Int).SetUint64(s.lo))
		scaled := new(big.Int).Lsh(want.Num(), 128)
		if scaled.Quo(scaled, want.Denom()); have.Cmp(scaled) != 0 {
			t.Errorf("scale %d: have %x, want %x", i, have, scaled)
		}
	}
	for i := range 10000 {
		check(t, "digits", digits[4*i:4*i+4], fmt.Sprintf("%04d", i))
	}
	for i, w := range small {
		text := []byte{byte(w), byte(w >> 8), byte(w >> 16)}
		check(t, "small", string(text[:w>>24]), strconv.Itoa(i))
	}
}
