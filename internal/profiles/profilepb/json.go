package profilepb

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles/profilepb/googlev1"
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
		o.b = appendLabelsJSON(o.b, set)
	}
}

// list appends an array of n elements.
func (o *object) list(name string, n int, element func(dst []byte, i int) []byte) {
	if n > 0 {
		o.key(name)
		o.b = appendList(o.b, n, element)
	}
}

func appendList(dst []byte, n int, element func(dst []byte, i int) []byte) []byte {
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

func appendLabelsJSON(dst, set []byte) []byte {
	dst = append(dst, '[')
	first := true
	for len(set) > 0 {
		var name, value []byte
		name, value, set = cutLabel(set)
		dst, first = appendLabelJSON(dst, name, value, first), false
	}
	return append(dst, ']')
}

// appendLabelJSON appends an element of a list of labels.
func appendLabelJSON(dst, name, value []byte, first bool) []byte {
	if !first {
		dst = append(dst, ',')
	}
	o := open(dst)
	o.text("name", string(name))
	o.text("value", string(value))
	return o.close()
}

// appendSetJSON appends the labels that are not named in without, and nothing if there are none.
func appendSetJSON(dst, set []byte, without []string) []byte {
	first := true
	for len(set) > 0 {
		var name, value []byte
		if name, value, set = cutLabel(set); slices.Contains(without, string(name)) {
			continue
		}
		if first {
			dst = append(dst, '[')
		}
		dst, first = appendLabelJSON(dst, name, value, first), false
	}
	if first {
		return dst
	}
	return append(dst, ']')
}

// appendJSON appends an exemplar. set is its encoded label set.
func (e *EncodedExemplar) appendJSON(dst, set []byte) []byte {
	o := open(dst)
	o.int64("timestamp", e.TimestampMS)
	o.key("profileId")
	o.b = append(appendUUID(append(o.b, '"'), &e.ProfileID), '"')
	o.int64("value", e.Value)
	if len(set) > 0 {
		o.key("labels")
		o.b = append(o.b, set...)
	}
	return o.close()
}

func (p *EncodedPoint) appendJSON(dst []byte, sets *setEncoder) []byte {
	o := open(dst)
	o.double("value", p.Value)
	o.int64("timestamp", p.TimestampMS)
	if p.HasExemplar {
		o.key("exemplars")
		o.b = append(p.Exemplar.appendJSON(append(o.b, '['), sets.get(p.Exemplar.Set)), ']')
	}
	return o.close()
}

// AppendJSON implements Encoder.
func (a *SeriesEncoder) AppendJSON(dst []byte) []byte {
	sets := newSetEncoder(a.Source, appendSetJSON)
	defer sets.release()
	var p EncodedPoint
	o := open(dst)
	o.list("series", a.Source.Len(), func(dst []byte, i int) []byte {
		o := open(dst)
		o.labels("labels", a.Source.Labels(i))
		o.list("points", a.Source.Points(i), func(dst []byte, j int) []byte {
			a.Source.Point(i, j, &p)
			return p.appendJSON(dst, sets)
		})
		return o.close()
	})
	return o.close()
}

func (f *Flame) fields(o *object) {
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

func (f *Flame) appendJSON(dst []byte) []byte {
	o := open(dst)
	f.fields(&o)
	return o.close()
}

// AppendJSON implements Encoder.
func (a *MergeEncoder) AppendJSON(dst []byte) []byte {
	o := open(dst)
	if a.Flame != nil {
		o.key("flamegraph")
		o.b = a.Flame.appendJSON(o.b)
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
	a.Flame.fields(&inner)
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
