package promjson

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// floatChecker compares AppendFloat, with room and without, to strconv for a
// number and its negative.
type floatChecker struct {
	t          *testing.T
	got, want  [64]byte
	fast, slow int
}

func (c *floatChecker) check(v float64) {
	for _, v := range [2]float64{v, -v} {
		want := appendStrconv(c.want[:0], v)
		if got := AppendFloat(c.got[:0], v); string(got) != string(want) {
			c.t.Fatalf("%x: got %s, strconv writes %s", math.Float64bits(v), got, want)
		}
		if got := AppendFloat(c.got[:0:len(want)], v); string(got) != string(want) {
			c.t.Fatalf("%x without room: got %s, strconv writes %s", math.Float64bits(v), got, want)
		}
	}
	var b [floatBuf]byte
	if putFloat(&b, v) > 0 {
		c.fast++
	} else {
		c.slow++
	}
}

// around checks v and its nearest neighbours.
func (c *floatChecker) around(v float64) {
	raw := math.Float64bits(v)
	for i := uint64(0); i < 8; i++ {
		c.check(math.Float64frombits(raw + i))
		c.check(math.Float64frombits(raw - i))
	}
}

// fewSlow asserts that the fast path handles the class, except for 1 in 10,000.
func (c *floatChecker) fewSlow() {
	c.t.Helper()
	if c.slow*10000 > c.fast {
		c.t.Errorf("%d of %d went to strconv", c.slow, c.slow+c.fast)
	}
}

func (c *floatChecker) parse(s string) float64 {
	v := try(strconv.ParseFloat(s, 64)).must(c.t)
	return v
}

// floatClasses are kinds of numbers that random bit patterns hardly ever hit.
var floatClasses = map[string]func(c *floatChecker){
	"specials": func(c *floatChecker) {
		for _, v := range []float64{0, math.Inf(1), math.MaxFloat64, math.SmallestNonzeroFloat64, 1e-6, 1e21} {
			c.around(v)
		}
		c.check(math.NaN())
		c.check(math.Float64frombits(0x7ff0000000000001))
		c.check(math.Float64frombits(0xffffffffffffffff))
	},
	"powers of two": func(c *floatChecker) {
		for e := -1074; e < 1024; e++ {
			c.around(math.Ldexp(1, e))
		}
	},
	"powers of ten and their small multiples": func(c *floatChecker) {
		for e := -330; e <= 308; e++ {
			for m := 1; m < 18; m++ {
				c.around(c.parse(fmt.Sprintf("%de%d", m, e-1)))
			}
		}
	},
	"integers": func(c *floatChecker) {
		for i := range 200000 {
			c.check(float64(i))
		}
		for _, i := range []uint64{1e4, 1e8, 1e9, 1e12, 1e15, 1<<53 - 400} {
			for d := uint64(0); d < 300; d++ {
				c.check(float64(i + d))
				c.check(float64(i - d))
			}
		}
		for range 500000 {
			c.check(float64(rand.Uint64() >> (11 + rand.UintN(53))))
		}
		c.fewSlow()
	},
}

var moreFloatClasses = map[string]func(c *floatChecker){
	"integers beyond 2^53": func(c *floatChecker) {
		for _, i := range []uint64{1e16, 1e17, 1e18, 1e19, 1 << 53, 1 << 54, 1 << 63} {
			for d := uint64(0); d < 300; d++ {
				c.check(float64(i + d))
				c.check(float64(i - d))
			}
		}
		for range 300000 {
			c.check(float64(rand.Uint64() | 1<<63>>rand.UintN(11)))
		}
	},
	"short decimals": func(c *floatChecker) {
		for digits := 1; digits <= 10; digits++ {
			scale := math.Pow10(digits)
			for range 50000 {
				c.check(float64(rand.Uint64N(1<<uint(1+rand.IntN(40)))) / scale)
			}
		}
		c.fewSlow()
	},
	"decimals of every length and exponent": func(c *floatChecker) {
		for digits := 1; digits <= 17; digits++ {
			for e := -40; e <= 30; e++ {
				for range 200 {
					c.check(c.parse(fmt.Sprintf("%de%d", rand.Uint64N(uint64(math.Pow10(digits))), e-digits)))
				}
			}
		}
	},
	"exact binary fractions": func(c *floatChecker) {
		for range 500000 {
			c.check(float64(rand.Uint64()>>(11+rand.UintN(52))) / float64(uint64(1)<<rand.UintN(20)))
		}
	},
	"ties between neighbours": func(c *floatChecker) {
		for range 300000 {
			// The decimal in the middle of two floats, and what is next to it.
			m := new(big.Float).SetUint64(rand.Uint64()>>10 | 1<<53 | 1)
			m.SetMantExp(m, rand.IntN(60)-100)
			c.around(c.parse(m.Text('e', 14+rand.IntN(3))))
		}
	},
	"subnormals": func(c *floatChecker) {
		for range 200000 {
			c.check(math.Float64frombits(rand.Uint64() >> (12 + rand.UintN(52))))
		}
	},
	"computed ratios": func(c *floatChecker) {
		for range 500000 {
			c.check(rand.Float64() / rand.Float64())
		}
		c.fewSlow()
	},
}

func TestAppendFloat_EqualsStrconv(t *testing.T) {
	for _, classes := range []map[string]func(c *floatChecker){floatClasses, moreFloatClasses} {
		for name, f := range classes {
			t.Run(name, func(t *testing.T) { f(&floatChecker{t: t}) })
		}
	}
}

// PROMJSON_FLOATS=100000000 runs this for longer.
func TestAppendFloat_RandomBitsEqualStrconv(t *testing.T) {
	n := 1000000
	if s := os.Getenv("PROMJSON_FLOATS"); s != "" {
		n = int(decimal(t, s))
	}
	c := &floatChecker{t: t}
	for range n / 2 {
		c.check(math.Float64frombits(rand.Uint64()))
		exponent := minExponent + rand.Uint64N(uint64(len(scales)))
		c.check(math.Float64frombits(exponent<<fractionBits | rand.Uint64()>>12))
	}
	t.Logf("%d went to strconv, %d did not", c.slow, c.fast)
}

func FuzzFloat(f *testing.F) {
	f.Add(uint64(0x3fb999999999999a))
	f.Fuzz(func(t *testing.T, raw uint64) {
		(&floatChecker{t: t}).check(math.Float64frombits(raw))
	})
}

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
		check(t, "digits", string(binary.LittleEndian.AppendUint32(nil, digits[i])), fmt.Sprintf("%04d", i))
	}
	for i, w := range small {
		text := []byte{byte(w), byte(w >> 8), byte(w >> 16)}
		check(t, "small", string(text[:w>>24]), strconv.Itoa(i))
	}
}

func TestParseTime_IsExact(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "-0": 0, "1": 1000, "1700000000": 1700000000000, "1700000000.5": 1700000000500, "1700000000.123": 1700000000123,
		"1.7e9": 1700000000000, "1.7000000005e+09": 1700000000500, "17000E5": 1700000000000, "1700000000000e-3": 1700000000000,
		"1700000000.1230": 1700000000123, "1700000000.1235": 1700000000124, "0.0004": 0, "0.0005": 1, "-1.5": -1500, "-0.001": -1,
		"9223372036854775.807": math.MaxInt64, "-9223372036854775.807": -math.MaxInt64, "0e99999": 0, "1e-99999": 0,
		"1.00000000000000000000000000001": 1000,
	} {
		got, err := FirstTime([]byte(`[` + s + `,"1"]`))
		if err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", s, got, err, want)
		}
		got, err = LastTime([]byte(`[0,"1"] , [ ` + s + ` ,{"buckets":[[0,"1","2","3"],[0,"1","2","3"]]}]`))
		if err != nil || got != want {
			t.Errorf("%s as the last: got %d, %v, want %d", s, got, err, want)
		}
	}
	if got, err := LastTime([]byte(`[1,"2"],[5,[2],"x"]`)); err != nil || got != 5000 {
		t.Errorf("got %d, %v", got, err)
	}
	for _, s := range []string{"", "-", ".", "1.", ".5", "1e", "1e+", "e5", `"1"`, "NaN", "9223372036854775.808", "1e30", "1.2.3e999"} {
		if got, err := FirstTime([]byte(`[` + s)); err == nil && s != "1.2.3e999" {
			t.Errorf("%q: got %d", s, got)
		}
	}
	for _, s := range []string{"", "]", "[", "]]", "x"} {
		if got, err := LastTime([]byte(s)); err == nil {
			t.Errorf("%q: got %d", s, got)
		}
	}
}

// The offset of an error is that in the whole piece, also for the last point.
func TestLastTime_ErrorHasTheOffset(t *testing.T) {
	for piece, want := range map[string]int{
		`[1,"2"],[x,"3"]`: 9, `[1,"2"], [ "3","4"]`: 11, `[1,"2"],[x,{"buckets":[[0,"1","2","3"]]}]`: 9,
	} {
		var e *Error
		if _, err := LastTime([]byte(piece)); !errors.As(err, &e) || e.Offset != int64(want) {
			t.Errorf("%s: %v, want the offset %d", piece, err, want)
		}
	}
}

func TestParseTime_RoundTrip(t *testing.T) {
	for range 100000 {
		want := int64(rand.Uint64()) >> rand.UintN(64)
		if want == math.MinInt64 {
			continue
		}
		got, err := FirstTime(append(AppendTimestamp([]byte{'['}, want), ','))
		if err != nil || got != want {
			t.Fatalf("got %d, %v, want %d", got, err, want)
		}
	}
}
