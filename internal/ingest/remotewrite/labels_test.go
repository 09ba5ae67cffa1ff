package remotewrite

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// field of bytes.
func text(dst []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, number, protowire.BytesType), value)
}

// Prometheus' label sets panic at longer names and values.
func TestCost_LabelsOfSixteenMegabytesAreRefused(t *testing.T) {
	most := strings.Repeat("a", 1<<24-1)
	for _, long := range []string{most, most + "a"} {
		name, value := text(text(nil, 1, long), 2, "b"), text(text(nil, 1, "a"), 2, long)
		for what, cost := range map[string]func() (Cost, error){
			"a name": func() (Cost, error) {
				return CostV1([]byte(text(nil, 1, string(text(nil, 1, string(name))))), math.MaxInt64)
			},
			"a value": func() (Cost, error) {
				return CostV1([]byte(text(nil, 1, string(text(nil, 1, string(value))))), math.MaxInt64)
			},
			"of an exemplar": func() (Cost, error) {
				return CostV1([]byte(text(nil, 1, string(text(nil, 3, string(text(nil, 1, string(value))))))), math.MaxInt64)
			},
			"a symbol": func() (Cost, error) { return CostV2(text(text(nil, 4, ""), 4, long), math.MaxInt64) },
			"of a name and value": func() (Cost, error) {
				return CostV1(text(nil, 1, string(text(nil, 1, string(text(text(nil, 1, long), 2, long))))), math.MaxInt64)
			},
		} {
			if _, err := cost(); (err == nil) != (len(long) == len(most)) || err != nil && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "16777216 bytes, at most 16777215")) {
				t.Errorf("%s of %d bytes: %v", what, len(long), err)
			}
		}
	}
	for _, label := range []string{strings.Repeat("\x12\x00", 1<<23) + "\xff", strings.Repeat("\x12\x00", 1<<23) + "\x12"} {
		if _, err := CostV1(text(nil, 1, string(text(nil, 1, label))), math.MaxInt64); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a label that is cut: %v", err)
		}
	}
}
