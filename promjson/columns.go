package promjson

import (
	"iter"
	"maps"
	"slices"
)

// AppendColumns is AppendPoints for columns: value vs[i] at ts[i], in milliseconds. It
// panics if the columns have different lengths.
func AppendColumns(dst []byte, g *Steps, ts []int64, vs []float64) []byte {
	if len(ts) != len(vs) {
		panic("promjson: columns of different lengths")
	}
	var piece [growPoints]Point
	for done := 0; done < len(ts); {
		n := min(len(ts)-done, len(piece))
		for i := range n {
			piece[i] = Point{ts[done+i], vs[done+i]}
		}
		if done > 0 {
			dst = append(dst, ',')
		}
		dst = AppendPoints(dst, g, piece[:n])
		done += n
	}
	return dst
}

// AppendPointSeq is AppendPoints for an iterator of times in milliseconds and values. The
// iteration allocates.
func AppendPointSeq(dst []byte, g *Steps, points iter.Seq2[int64, float64]) []byte {
	var piece [growPoints]Point
	n, first := 0, true
	send := func() {
		if n > 0 && !first {
			dst = append(dst, ',')
		}
		dst = AppendPoints(dst, g, piece[:n])
		n, first = 0, false
	}
	for ms, v := range points {
		piece[n] = Point{ms, v}
		if n++; n == len(piece) {
			send()
		}
	}
	send()
	return dst
}

// AppendMetric appends a metric object, {"name":"value",...}, with labels in the order of the
// iterator. In Prometheus' responses labels are sorted by name. The iteration allocates; the
// methods of an Encoder that take an iterator do not.
func AppendMetric(dst []byte, labels iter.Seq2[string, string]) []byte {
	dst = append(dst, '{')
	i := 0
	for name, value := range labels {
		dst = appendLabel(dst, i, name, value)
		i++
	}
	return append(dst, '}')
}

// AppendLabels is AppendMetric for a slice. It does not allocate if dst has enough capacity.
func AppendLabels(dst []byte, labels []Label) []byte {
	dst = append(dst, '{')
	for i := range labels {
		dst = appendLabel(dst, i, labels[i].Name, labels[i].Value)
	}
	return append(dst, '}')
}

// Pairs iterates over labels in the order of the slice.
func Pairs(labels []Label) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := range labels {
			if !yield(labels[i].Name, labels[i].Value) {
				return
			}
		}
	}
}

// SortedPairs iterates over a map of labels, such as a model.Metric, sorted by name.
func SortedPairs[N, V ~string](labels map[N]V) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, name := range slices.Sorted(maps.Keys(labels)) {
			if !yield(string(name), string(labels[name])) {
				return
			}
		}
	}
}

// DecodeColumns is DecodePoints for columns: it appends the timestamps of a piece, in
// milliseconds, to ts and the values to vs.
func DecodeColumns(ts []int64, vs []float64, piece []byte) ([]int64, []float64, error) {
	c := cursor{b: piece}
	n := c.count()
	ts, vs = slices.Grow(ts, n), slices.Grow(vs, n)
	for i := 0; ; i++ {
		p, more, wrong := c.nextPoint(i)
		if wrong != "" {
			return ts, vs, c.error(wrong)
		}
		if !more {
			return ts, vs, nil
		}
		ts, vs = append(ts, p.T), append(vs, p.F)
	}
}
