package promjson

import (
	"math"
	"testing"
)

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestAppendTimestamp_SecondsWithThreeDigitsOrNone(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0", 1: "0.001", 10: "0.010", 100: "0.100", 1000: "1", 1001: "1.001", 1010: "1.010", 1100: "1.100",
		1700000000000: "1700000000", 1700000015500: "1700000015.500", 12345678123456555: "12345678123456.555",
		-1: "-0.001", -1000: "-1", -1010: "-1.010", -12345678123456555: "-12345678123456.555",
		math.MaxInt64: "9223372036854775.807", -math.MaxInt64: "-9223372036854775.807",
		math.MinInt64: "-9223372036854775.808",
	} {
		check(t, "timestamp", string(AppendTimestamp(nil, ms)), want)
	}
}

func TestAppendLabelString_EscapesQuoteBackslashAndControls(t *testing.T) {
	for s, want := range map[string]string{
		"":             `""`,
		"node":         `"node"`,
		`a"b\c`:        `"a\"b\\c"`,
		"\x00\b\t\n":   `"\u0000\u0008\t\n"`,
		"\f\r\x1f\x7f": `"\u000c\r\u001f` + "\x7f\"",
		"<a>&\u2028":   "\"<a>&\u2028\"",
		"\xff\xc3ä":    "\"\xff\xc3ä\"",
	} {
		check(t, "label string", string(AppendLabelString(nil, s)), want)
	}
}

func TestAppendString_EscapesMarkupAndInvalidUTF8(t *testing.T) {
	for s, want := range map[string]string{
		"":                  `""`,
		`a"b\c`:             `"a\"b\\c"`,
		"\x00\b\t\n":        `"\u0000\u0008\t\n"`,
		"<a>&\u2028\u2029ä": `"\u003ca\u003e\u0026\u2028\u2029ä"`,
		"x\xffy\xc3":        `"x\ufffdy\ufffd"`,
		"\ufffd":            "\"\ufffd\"",
	} {
		check(t, "string", string(AppendString(nil, s)), want)
	}
}

type otherPoint struct {
	T int64
	F float64
}

func TestAppendPoints_PointsOfAnyPackageInPieces(t *testing.T) {
	points := []otherPoint{{1000, 1}, {2500, math.NaN()}, {3000, math.Inf(-1)}, {4000, 1e21}, {5000, 1e-7}}
	want := `[1,"1"],[2.500,"NaN"],[3,"-Inf"],[4,"1e+21"],[5,"1e-07"]`
	g := NewSteps(1000, 1000, 4)
	for _, grid := range []*Steps{nil, new(Steps), g} {
		for cut := 1; cut < len(points); cut++ {
			dst := AppendPoints(nil, grid, points[:cut])
			dst = append(dst, ',')
			dst = AppendPoints(dst, grid, points[cut:])
			check(t, "points", string(dst), want)
		}
	}
	check(t, "no points", string(AppendPoints(nil, g, points[:0])), "")
}

func TestAppendHistogram_OmitsEmptyBuckets(t *testing.T) {
	buckets := []Bucket{{Closed, -0.001, 0.001, 0}, {LeftOpen, 0.001, 1, 2}, {RightOpen, -2, -1, 0.5}}
	check(t, "histogram", string(AppendHistogram(nil, 5, 18.4, buckets)),
		`{"count":"5","sum":"18.4","buckets":[[0,"0.001","1","2"],[1,"-2","-1","0.5"]]}`)
	check(t, "histogram without buckets", string(AppendHistogram(nil, 0, math.NaN(), buckets[:1])),
		`{"count":"0","sum":"NaN"}`)
	check(t, "boundaries", string([]byte{byte('0' + Boundaries(false, true)), byte('0' + Boundaries(true, false)),
		byte('0' + Boundaries(false, false)), byte('0' + Boundaries(true, true))}), "0123")
}
