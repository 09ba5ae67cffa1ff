package compare

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferula-io/ferula/promjson"
)

// Difference is one difference between the responses to a query. Left and Right are empty if this side has nothing.
type Difference struct {
	Kind   Kind   `json:"kind"`
	Series string `json:"series,omitempty"`
	TimeMS int64  `json:"time_ms,omitempty"`
	Left   string `json:"left"`
	Right  string `json:"right"`
	ULP    uint64 `json:"ulp,omitempty"`    // floats between two values; 0 if one of them is not finite
	Reason string `json:"reason,omitempty"` // documented
}

// Kind is a kind of difference.
type Kind string

// The kinds.
const (
	KindStatus    Kind = "HTTP status"
	KindErrorType Kind = "error type"
	KindError     Kind = "error"
	KindType      Kind = "result type"
	KindSeries    Kind = "missing series"
	KindSample    Kind = "missing sample"
	KindValue     Kind = "value"
	KindHistogram Kind = "histogram"
	KindText      Kind = "string"
	KindOrder     Kind = "order of series"
	KindWarning   Kind = "warning"
	KindInfo      Kind = "info"
)

// differencesMax is how many differences of a query are listed. Others are counted.
const differencesMax = 20

// diff collects the differences between two responses.
type diff struct {
	sameBytes bool
	list      []Difference
	more      int
}

func (d *diff) add(x Difference) {
	if len(d.list) == differencesMax {
		d.more++
		return
	}
	x.Left, x.Right, x.Series = short(x.Left), short(x.Right), short(x.Series)
	d.list = append(d.list, x)
}

// short limits a text of a difference.
func short(text string) string {
	const bytesMax = 500
	if len(text) <= bytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:bytesMax], "") + "…"
}

// text adds a difference if two texts differ.
func (d *diff) text(kind Kind, left, right string) {
	if left != right {
		d.add(Difference{Kind: kind, Left: left, Right: right})
	}
}

// responses compares two responses. ordered means that the order of the series is part of the result. The error means
// that a result cannot be decoded.
func (d *diff) responses(left, right *response, ordered bool) error {
	d.text(KindStatus, strconv.Itoa(left.status), strconv.Itoa(right.status))
	d.text(KindErrorType, left.ErrorType, right.ErrorType)
	d.text(KindError, left.Error, right.Error)
	d.texts(KindWarning, left.Warnings, right.Warnings)
	d.texts(KindInfo, left.Infos, right.Infos)
	d.sameBytes = bytes.Equal(left.Data, right.Data)
	if d.sameBytes || left.Status != "success" || right.Status != "success" {
		return nil
	}
	l, err := promjson.Decode(bytes.NewReader(left.body), promjson.Options{})
	if err != nil {
		return fmt.Errorf("left: %w", err)
	}
	r, err := promjson.Decode(bytes.NewReader(right.body), promjson.Options{})
	if err != nil {
		return fmt.Errorf("right: %w", err)
	}
	if l.ResultType != r.ResultType {
		d.text(KindType, l.ResultType, r.ResultType)
		return nil
	}
	d.text(KindText, l.String.S, r.String.S)
	d.point("", l.Scalar, r.Scalar)
	d.series(l.Series, r.Series, ordered)
	return nil
}

// texts compares warnings or infos, whose order does not matter.
func (d *diff) texts(kind Kind, left, right []string) {
	for _, text := range left {
		if !slices.Contains(right, text) {
			d.text(kind, text, "")
		}
	}
	for _, text := range right {
		if !slices.Contains(left, text) {
			d.text(kind, "", text)
		}
	}
}

func (d *diff) point(name string, left, right promjson.Point) {
	switch {
	case left.T != right.T:
		d.add(Difference{Kind: KindSample, Series: name, TimeMS: left.T, Left: number(left.F)})
		d.add(Difference{Kind: KindSample, Series: name, TimeMS: right.T, Right: number(right.F)})
	case math.Float64bits(left.F) != math.Float64bits(right.F):
		d.add(Difference{Kind: KindValue, Series: name, TimeMS: left.T, Left: number(left.F), Right: number(right.F),
			ULP: ulps(left.F, right.F)})
	}
}

// number writes a value with all its digits.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// ulps returns how many steps to the next float lead from a to b; 0 if one is NaN or infinite.
func ulps(a, b float64) uint64 {
	if math.IsNaN(a) || math.IsNaN(b) || math.IsInf(a, 0) || math.IsInf(b, 0) {
		return 0
	}
	place := func(v float64) int64 { // in the order of floats
		if bits := int64(math.Float64bits(v)); bits < 0 {
			return math.MinInt64 - bits
		} else {
			return bits
		}
	}
	x, y := place(a), place(b)
	if x > y {
		x, y = y, x
	}
	return uint64(y) - uint64(x)
}

// series compares the series of two results.
func (d *diff) series(left, right []promjson.Series, ordered bool) {
	rights := make(map[string]*promjson.Series, len(right))
	found := map[string]bool{}
	var names, rightNames []string
	for i := range right {
		name := labelText(right[i].Labels)
		rightNames = append(rightNames, name)
		rights[name] = &right[i]
	}
	for i := range left {
		name := labelText(left[i].Labels)
		other := rights[name]
		if other == nil {
			d.add(Difference{Kind: KindSeries, Series: name, Left: seriesText(&left[i])})
			continue
		}
		names, found[name] = append(names, name), true
		delete(rights, name)
		merge(left[i].Values, other.Values, func(p promjson.Point) int64 { return p.T }, func(l, r *promjson.Point) {
			switch {
			case r == nil:
				d.add(Difference{Kind: KindSample, Series: name, TimeMS: l.T, Left: number(l.F)})
			case l == nil:
				d.add(Difference{Kind: KindSample, Series: name, TimeMS: r.T, Right: number(r.F)})
			default:
				d.point(name, *l, *r)
			}
		})
		at := func(p promjson.HistogramPoint) int64 { return p.T }
		merge(left[i].Histograms, other.Histograms, at, func(l, r *promjson.HistogramPoint) {
			switch {
			case r == nil:
				d.add(Difference{Kind: KindSample, Series: name, TimeMS: l.T, Left: histogramText(l)})
			case l == nil:
				d.add(Difference{Kind: KindSample, Series: name, TimeMS: r.T, Right: histogramText(r)})
			default:
				d.histogram(name, l, r)
			}
		})
	}
	for _, name := range rightNames {
		if series := rights[name]; series != nil {
			d.add(Difference{Kind: KindSeries, Series: name, Right: seriesText(series)})
		}
	}
	if ordered {
		both := slices.DeleteFunc(rightNames, func(name string) bool { return !found[name] })
		d.text(KindOrder, strings.Join(names, " "), strings.Join(both, " "))
	}
}

// merge calls visit for the points of both lists, in the order of time. A point that the other list lacks is visited
// with nil.
func merge[P any](left, right []P, at func(P) int64, visit func(l, r *P)) {
	for len(left) > 0 || len(right) > 0 {
		switch {
		case len(right) == 0 || len(left) > 0 && at(left[0]) < at(right[0]):
			visit(&left[0], nil)
			left = left[1:]
		case len(left) == 0 || at(right[0]) < at(left[0]):
			visit(nil, &right[0])
			right = right[1:]
		default:
			visit(&left[0], &right[0])
			left, right = left[1:], right[1:]
		}
	}
}

func (d *diff) histogram(name string, left, right *promjson.HistogramPoint) {
	same := func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }
	if same(left.Count, right.Count) && same(left.Sum, right.Sum) && slices.EqualFunc(left.Buckets, right.Buckets,
		func(a, b promjson.Bucket) bool {
			return a.Boundaries == b.Boundaries && same(a.Lower, b.Lower) && same(a.Upper, b.Upper) && same(a.Count, b.Count)
		}) {
		return
	}
	d.add(Difference{Kind: KindHistogram, Series: name, TimeMS: left.T, Left: histogramText(left),
		Right: histogramText(right)})
}

func histogramText(h *promjson.HistogramPoint) string {
	text := fmt.Sprintf("count %s, sum %s", number(h.Count), number(h.Sum))
	for _, b := range h.Buckets {
		text += fmt.Sprintf(", (%s, %s]: %s", number(b.Lower), number(b.Upper), number(b.Count))
	}
	return text
}

// labelText writes labels as PromQL does.
func labelText(list []promjson.Label) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, l := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s=%q", l.Name, l.Value)
	}
	b.WriteByte('}')
	return b.String()
}

// seriesText says what a series has that the other side lacks.
func seriesText(s *promjson.Series) string {
	if len(s.Values) == 1 && len(s.Histograms) == 0 {
		return number(s.Values[0].F)
	}
	return fmt.Sprintf("%d samples", len(s.Values)+len(s.Histograms))
}

// timeText writes a time in ms.
func timeText(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z") }
