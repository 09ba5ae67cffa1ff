package profilepb

// Encoder is a large response that encodes itself. A query's result is encoded without
// a message tree and without reflection.
type Encoder interface {
	// AppendProto appends the message's protobuf bytes.
	AppendProto(dst []byte) []byte
	// AppendJSON appends the message in protobuf's JSON mapping: names in camel case,
	// 64-bit integers as strings, no zero values.
	AppendJSON(dst []byte) []byte
}

// SeriesEncoder encodes a querier.v1.SelectSeriesResponse.
type SeriesEncoder struct{ Source SeriesSource }

// SeriesSource is the result of a query in its own representation. The encoder reads it
// twice, since lengths precede values, and it must not change in between.
type SeriesSource interface {
	Len() int
	Labels(series int) []byte // label set in the encoding of labelenc
	Points(series int) int
	// Point fills into, whose memory is reused: append exemplars to into.Exemplars[:0].
	Point(series, point int, into *EncodedPoint)
}

// EncodedPoint is the value of one step.
type EncodedPoint struct {
	TimestampMS int64
	Value       float64
	Exemplars   []EncodedExemplar
}

// EncodedExemplar is an exemplar of a point: one profile.
type EncodedExemplar struct {
	TimestampMS int64
	ProfileID   []byte // digits, letters and dashes
	Value       int64
	Labels      []byte // encoded, without the labels of the series
}

// Flame is a flame graph. A level has four integers per node: offset from the end of the
// node to the left, total, self, and the index of the name.
type Flame struct {
	Names   []string
	Levels  [][]int64
	Total   int64
	MaxSelf int64
}

// MergeEncoder encodes a SelectMergeStacktracesResponse in one of its four formats.
type MergeEncoder struct {
	Flame *Flame
	Tree  []byte
	Dot   string
	Pprof []byte // encoded google.v1.Profile, uncompressed
}

// ProfileEncoder encodes the response of SelectMergeProfile: an encoded
// google.v1.Profile, uncompressed.
type ProfileEncoder struct{ Profile []byte }

// DiffEncoder encodes a diff of two flame graphs. A level has seven integers per node:
// offset, total and self of the left graph, the same of the right, and the index of the
// name.
type DiffEncoder struct {
	Flame
	LeftTicks, RightTicks int64
}

// LabelSetsEncoder encodes the response of Series.
type LabelSetsEncoder struct{ Sets [][]byte } // in the encoding of labelenc

var (
	_ Encoder = (*SeriesEncoder)(nil)
	_ Encoder = (*MergeEncoder)(nil)
	_ Encoder = (*ProfileEncoder)(nil)
	_ Encoder = (*DiffEncoder)(nil)
	_ Encoder = (*LabelSetsEncoder)(nil)
)
