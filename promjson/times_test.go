package promjson

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

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
