package block

import (
	"math"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// AddValues adds two non-negative values. A sum above the greatest int64 becomes the greatest
// int64. So the order of several additions does not matter.
func AddValues(a, b int64) int64 {
	if sum := a + b; sum >= 0 {
		return sum
	}
	return math.MaxInt64
}

// FullLabels returns a pushed label set with the labels of its type added.
func FullLabels(plain []byte, t profiles.Type) []byte {
	ofType := [...][2]string{
		{profiles.LabelPeriodType, t.PeriodType}, {profiles.LabelPeriodUnit, t.PeriodUnit}, {profiles.LabelType, t.String()},
		{profiles.LabelSampleType, t.SampleType}, {profiles.LabelSampleUnit, t.SampleUnit},
	}
	slices.SortFunc(ofType[:], func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	var own []byte
	for _, l := range ofType {
		if l[1] != "" {
			own = labelenc.AppendLabel(own, l[0], l[1])
		}
	}
	full, err := labelenc.AppendMerged(make([]byte, 0, len(own)+len(plain)), own, plain)
	if err != nil {
		return plain
	}
	return full
}
