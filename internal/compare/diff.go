package compare

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/value"

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
	d.samples("", []sample{{ms: l.Scalar.T, f: l.Scalar.F}}, []sample{{ms: r.Scalar.T, f: r.Scalar.F}})
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

// sample is a value, or a histogram in Prometheus' notation with all digits. f of a histogram of raw samples is its sum:
// its bits tell a stale marker.
type sample struct {
	ms        int64
	f         float64
	histogram string
}

func (s sample) text() string {
	switch {
	case value.IsStaleNaN(s.f):
		return "stale"
	case s.histogram != "":
		return s.histogram
	}
	return strconv.FormatFloat(s.f, 'g', -1, 64)
}

// samples compares the samples of a series, bit by bit. Both lists are in the order of time.
func (d *diff) samples(name string, left, right []sample) {
	for len(left) > 0 || len(right) > 0 {
		switch {
		case len(right) == 0 || len(left) > 0 && left[0].ms < right[0].ms:
			d.add(Difference{Kind: KindSample, Series: name, TimeMS: left[0].ms, Left: left[0].text()})
			left = left[1:]
			continue
		case len(left) == 0 || right[0].ms < left[0].ms:
			d.add(Difference{Kind: KindSample, Series: name, TimeMS: right[0].ms, Right: right[0].text()})
			right = right[1:]
			continue
		}
		l, r := left[0], right[0]
		left, right = left[1:], right[1:]
		if l.histogram == r.histogram && math.Float64bits(l.f) == math.Float64bits(r.f) {
			continue
		}
		x := Difference{Kind: KindValue, Series: name, TimeMS: l.ms, Left: l.text(), Right: r.text()}
		if l.histogram+r.histogram != "" {
			x.Kind = KindHistogram
		} else {
			x.ULP = ulps(l.f, r.f)
		}
		d.add(x)
	}
}

// ulps returns how many steps to the next float lead from a to b; 0 if one is NaN or infinite.
func ulps(a, b float64) uint64 {
	if math.IsNaN(a-b) || math.IsInf(a, 0) || math.IsInf(b, 0) {
		return 0
	}
	place := func(v float64) int64 { // in the order of floats
		if bits := int64(math.Float64bits(v)); bits >= 0 {
			return bits
		}
		return -int64(math.Float64bits(-v))
	}
	x, y := place(a), place(b)
	return uint64(max(x, y)) - uint64(min(x, y))
}

// series compares the series of two results.
func (d *diff) series(left, right []promjson.Series, ordered bool) {
	rights := make(map[string]*promjson.Series, len(right))
	for i := range right {
		name := labelText(right[i].Labels)
		if rights[name] != nil {
			d.add(Difference{Kind: KindSeries, Series: name, Right: seriesText(&right[i]) + " (once more)"})
			continue
		}
		rights[name] = &right[i]
	}
	var names, rightNames []string // of series that both have
	found := map[string]bool{}
	for i := range left {
		name := labelText(left[i].Labels)
		other := rights[name]
		if other == nil || found[name] {
			d.add(Difference{Kind: KindSeries, Series: name, Left: seriesText(&left[i])})
			continue
		}
		names, found[name] = append(names, name), true
		d.samples(name, samplesOf(&left[i]), samplesOf(other))
	}
	for i := range right {
		if name := labelText(right[i].Labels); found[name] {
			rightNames = append(rightNames, name)
		} else {
			d.add(Difference{Kind: KindSeries, Series: name, Right: seriesText(&right[i])})
		}
	}
	if ordered {
		d.text(KindOrder, strings.Join(names, " "), strings.Join(rightNames, " "))
	}
}

// samplesOf returns the samples of a series of the HTTP API, which lists values and histograms separately.
func samplesOf(s *promjson.Series) []sample {
	list := make([]sample, 0, len(s.Values)+len(s.Histograms))
	for _, p := range s.Values {
		list = append(list, sample{ms: p.T, f: p.F})
	}
	for _, h := range s.Histograms {
		text := fmt.Sprintf("{count:%g, sum:%g", h.Count, h.Sum)
		for _, b := range h.Buckets {
			bounds := [...]string{"(]", "[)", "()", "[]"}[b.Boundaries&3]
			text += fmt.Sprintf(", %c%g,%g%c:%g", bounds[0], b.Lower, b.Upper, bounds[1], b.Count)
		}
		list = append(list, sample{ms: h.T, histogram: text + "}"})
	}
	slices.SortStableFunc(list, func(a, b sample) int { return cmp.Compare(a.ms, b.ms) })
	return list
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
		return samplesOf(s)[0].text()
	}
	return fmt.Sprintf("%d samples", len(s.Values)+len(s.Histograms))
}

// timeText writes a time in ms.
func timeText(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z") }
