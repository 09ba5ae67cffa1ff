package profilepb

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb/googlev1"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/promjson"
)

// object appends the fields of a JSON object that are not zero.
type object struct {
	b     []byte
	first bool
}

func open(dst []byte) object { return object{append(dst, '{'), true} }

func (o *object) close() []byte { return append(o.b, '}') }

func (o *object) key(name string) {
	if !o.first {
		o.b = append(o.b, ',')
	}
	o.first = false
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) text(name, v string) {
	if v != "" {
		o.key(name)
		o.b = promjson.AppendString(o.b, valid(v))
	}
}

func (o *object) int64(name string, v int64) {
	if v != 0 {
		o.key(name)
		o.b = appendQuoted(o.b, v)
	}
}

func (o *object) double(name string, v float64) {
	if math.Float64bits(v) != 0 {
		o.key(name)
		o.b = appendDouble(o.b, v)
	}
}

func (o *object) labels(name string, set []byte) {
	if len(set) > 0 {
		o.key(name)
		o.b = appendSetJSON(o.b, set, nil)
	}
}

// list appends an array of n elements, unless there are none.
func (o *object) list(name string, n int, element func(dst []byte, i int) []byte) {
	if n > 0 {
		o.key(name)
		o.b = AppendList(o.b, n, element)
	}
}

// AppendList appends an array of n elements.
func AppendList(dst []byte, n int, element func(dst []byte, i int) []byte) []byte {
	dst = append(dst, '[')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element(dst, i)
	}
	return append(dst, ']')
}

func appendQuoted(dst []byte, v int64) []byte {
	return append(strconv.AppendInt(append(dst, '"'), v, 10), '"')
}

// appendDouble encodes NaN and infinities, which JSON lacks, as protobuf's mapping does.
func appendDouble(dst []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(dst, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(dst, `"-Infinity"`...)
	}
	return promjson.AppendFloat(dst, v)
}

// appendSetJSON appends the labels that are not named in without, and nothing if there are none.
func appendSetJSON(dst, set []byte, without []string) []byte {
	from := len(dst)
	for len(set) > 0 {
		name, value, rest, err := labelenc.Next(set)
		if err != nil {
			break // stored sets are valid
		}
		if set = rest; slices.Contains(without, string(name)) {
			continue
		}
		o := open(append(dst, ','))
		o.text("name", string(name))
		o.text("value", string(value))
		dst = o.close()
	}
	if len(dst) == from {
		return dst
	}
	dst[from] = '['
	return append(dst, ']')
}

// appendExemplarJSON appends an exemplar. span may be nil; set is the encoded label set.
func appendExemplarJSON(dst []byte, x *profiles.Exemplar, span *profiles.Span, set []byte) []byte {
	o := open(dst)
	o.int64("timestamp", x.TimeNS/1e6)
	o.key("profileId")
	o.b = append(x.ID.Append(append(o.b, '"')), '"')
	if span != nil {
		o.text("spanId", span.IDText())
	}
	o.int64("value", x.Value)
	if len(set) > 0 {
		o.key("labels")
		o.b = append(o.b, set...)
	}
	if span != nil {
		o.text("traceId", span.TraceText())
	}
	return o.close()
}

// AppendJSON implements Encoder.
func (a *SeriesEncoder) AppendJSON(dst []byte) []byte {
	sets := newSetEncoder(a.Result, appendSetJSON)
	defer sets.release()
	o := open(a.grow(dst, a.estimate(sets, 52, 140)))
	o.list("series", len(a.Result.Series), func(dst []byte, i int) []byte {
		s := &a.Result.Series[i]
		o := open(dst)
		o.labels("labels", s.Labels)
		o.list("points", len(s.Points), func(dst []byte, j int) []byte {
			o := open(dst)
			o.double("value", s.Points[j].Value)
			o.int64("timestamp", s.Points[j].TimeMS)
			if x, span := a.exemplar(s, j); x != nil {
				o.key("exemplars")
				o.b = append(appendExemplarJSON(append(o.b, '['), x, span, sets.get(x.Set)), ']')
			}
			return a.pass(o.close())
		})
		return o.close()
	})
	return o.close()
}

func (o *object) flame(f *profiles.FlameGraph) {
	o.list("names", len(f.Names), func(dst []byte, i int) []byte { return promjson.AppendString(dst, valid(f.Names[i])) })
	o.list("levels", len(f.Levels), func(dst []byte, i int) []byte {
		level := f.Levels[i]
		o := open(dst)
		o.list("values", len(level), func(dst []byte, j int) []byte { return appendQuoted(dst, level[j]) })
		return o.close()
	})
	o.int64("total", f.Total)
	o.int64("maxSelf", f.MaxSelf)
}

// AppendJSON implements Encoder.
func (a *MergeEncoder) AppendJSON(dst []byte) []byte {
	o := open(dst)
	if a.Flame != nil {
		o.key("flamegraph")
		inner := open(o.b)
		inner.flame(a.Flame)
		o.b = inner.close()
	}
	if len(a.Tree) > 0 {
		o.key("tree")
		o.b = append(base64.StdEncoding.AppendEncode(append(o.b, '"'), a.Tree), '"')
	}
	o.text("dot", a.Dot)
	if a.Pprof != nil {
		o.key("pprof")
		inner := open(o.b)
		inner.key("profile")
		inner.b = (&ProfileEncoder{a.Pprof}).AppendJSON(inner.b)
		o.b = inner.close()
	}
	return o.close()
}

// AppendJSON implements Encoder. It uses reflection: only users with curl request a pprof
// in JSON.
func (a *ProfileEncoder) AppendJSON(dst []byte) []byte {
	var p googlev1.Profile
	if err := proto.Unmarshal(a.Profile, &p); err != nil {
		return append(dst, "{}"...) // a profile that ferula encoded always decodes
	}
	out, err := protojson.MarshalOptions{}.MarshalAppend(dst, &p)
	if err != nil {
		return append(dst, "{}"...)
	}
	return out
}

// AppendJSON implements Encoder.
func (a *DiffEncoder) AppendJSON(dst []byte) []byte {
	o := open(dst)
	o.key("flamegraph")
	inner := open(o.b)
	inner.flame(&a.FlameGraph)
	inner.int64("leftTicks", a.LeftTicks)
	inner.int64("rightTicks", a.RightTicks)
	o.b = inner.close()
	return o.close()
}

// AppendJSON implements Encoder.
func (a *FunctionsEncoder) AppendJSON(dst []byte) []byte {
	o := open(dst)
	o.list("functions", len(a.Functions), func(dst []byte, i int) []byte {
		o := open(dst)
		o.text("name", a.Functions[i].Name)
		o.int64("self", a.Functions[i].Self)
		o.int64("total", a.Functions[i].Total)
		return o.close()
	})
	o.int64("total", a.Total)
	o.int64("count", a.Count)
	return o.close()
}

// AppendJSON implements Encoder.
func (a *LabelSetsEncoder) AppendJSON(dst []byte) []byte {
	o := open(dst)
	o.list("labelsSet", len(a.Sets), func(dst []byte, i int) []byte {
		o := open(dst)
		o.labels("labels", a.Sets[i])
		return o.close()
	})
	return o.close()
}
