package promjson

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// testdata was written by the codec of Prometheus 3.15 (web/api/v1): responses in
// *.json, single values in encode.txt, one a line as kind, input and output.
func TestAppend_ValuesEqualPrometheus(t *testing.T) {
	src, err := os.ReadFile("testdata/encode.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(src)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		kind, in, want := f[0], f[1], f[2]
		var got []byte
		switch kind {
		case "float":
			got = append(AppendFloat([]byte{'"'}, hexFloat(t, in)), '"')
		case "time":
			got = AppendTimestamp(nil, decimal(t, in))
			check(t, "roomy "+in, string(AppendTimestamp(make([]byte, 0, 64), decimal(t, in))), want)
		case "label":
			got = AppendLabelString(nil, unquoted(t, in))
		case "string":
			got = AppendString(nil, unquoted(t, in))
		case "stringresult":
			got = AppendStringResult(nil, 1700000015500, unquoted(t, in))
		case "scalar":
			ms, v, _ := strings.Cut(in, ":")
			got = AppendScalarResult(nil, decimal(t, ms), hexFloat(t, v))
		default:
			t.Fatalf("unknown kind %q", kind)
		}
		check(t, kind+" "+in, string(got), want)
	}
}

func hexFloat(t *testing.T, s string) float64 {
	t.Helper()
	u, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return math.Float64frombits(u)
}

func decimal(t *testing.T, s string) int64 {
	t.Helper()
	i, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func unquoted(t *testing.T, s string) string {
	t.Helper()
	u, err := strconv.Unquote(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
