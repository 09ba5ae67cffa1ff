package profilepb

// Encoder is a big answer that writes itself: neither a message tree nor
// reflection stands between a query's result and the bytes that leave.
type Encoder interface {
	// AppendProto appends the message's protobuf bytes.
	AppendProto(dst []byte) []byte
	// AppendJSON appends the message as protobuf's JSON mapping spells it: names in
	// camel case, 64-bit integers as strings, zero values left out.
	AppendJSON(dst []byte) []byte
}

// SeriesAnswer is what SelectSeries answers (querier.v1.SelectSeriesResponse).
type SeriesEncoder struct{ Source SeriesSource }

// SeriesSource is a result as whoever made it keeps it. It is read twice, for
// lengths go before what they measure, and must say the same both times.
type SeriesSource interface {
	Len() int
	Labels(series int) []byte // an encoded label set, as labelenc spells it
	Points(series int) int
	// Point fills into, whose memory is reused: Exemplars may be appended to
	// into.Exemplars[:0].
	Point(series, point int, into *EncodedPoint)
}

// AnswerPoint is the value of one step.
type EncodedPoint struct {
	TimestampMS int64
	Value       float64
	Exemplars   []EncodedExemplar
}

// AnswerExemplar is one profile that stands for a point.
type EncodedExemplar struct {
	TimestampMS int64
	ProfileID   []byte // digits, letters and dashes
	Value       int64
	Labels      []byte // encoded, less those that the series has
}

// Flame is a flame graph. Its levels hold four integers a node: the distance from the end of the
// node to its left, total, self, and the index of its name.
type Flame struct {
	Names   []string
	Levels  [][]int64
	Total   int64
	MaxSelf int64
}

// MergeAnswer is what SelectMergeStacktraces answers, with one of its four forms.
type MergeEncoder struct {
	Flame *Flame
	Tree  []byte
	Dot   string
	Pprof []byte // a google.v1.Profile, encoded and not compressed
}

// ProfileAnswer is what SelectMergeProfile answers: the bytes of a
// google.v1.Profile, not compressed.
type ProfileEncoder struct{ Profile []byte }

// DiffAnswer is two profiles laid over each other. Levels hold seven integers a
// node: for the left and for the right profile offset, total and self, and then
// the index of the name.
type DiffEncoder struct {
	Flame
	LeftTicks, RightTicks int64
}

// LabelSetsAnswer is what Series answers.
type LabelSetsEncoder struct{ Sets [][]byte } // encoded, as labelenc spells them

var (
	_ Encoder = (*SeriesEncoder)(nil)
	_ Encoder = (*MergeEncoder)(nil)
	_ Encoder = (*ProfileEncoder)(nil)
	_ Encoder = (*DiffEncoder)(nil)
	_ Encoder = (*LabelSetsEncoder)(nil)
)
