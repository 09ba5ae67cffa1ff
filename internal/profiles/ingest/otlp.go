package ingest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/otlp"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// otlpConverter converts the profiles of one request to pprofs.
type otlpConverter struct {
	request *otlp.Request
	limits  *Limits
	left    int // bytes of pprofs that the request may still become
	reads   int // bytes of strings that may still be copied: all profiles and samples may refer to the same long strings

	// Fields of the current profile:
	profile *otlp.Profile
	factor  int64 // by which values are multiplied: nanoseconds per sample if they are counts of a CPU profile, else 1
	common  int   // bytes of the labels that the pprofs of all its services have
	groups  map[string]*otlpGroup
	order   []*otlpGroup

	stack  []uint64
	labels [][2]string
}

// otlpGroup is the pprof of the samples of one service.
type otlpGroup struct {
	service   string
	encoder   *pprof.Encoder
	functions map[int32]uint64
	lines     map[int]uint64   // locations of lines
	addresses map[int32]uint64 // locations without lines
}

// otlpType is the type of a profile as texts.
type otlpType struct{ name, unit, period, periodUnit string }

// readsFactor is the maximum of string bytes that are copied per byte of pprof. The host of a thousand
// profiles is one string of the request, and is copied a thousand times.
const readsFactor = 16

func readsMax(limits *Limits) int {
	return readsFactor * min(limits.BurstBytes, math.MaxInt/readsFactor)
}

// Costs against the limits: an attribute costs attributeBytes and its strings, a service groupBytes and its labels, a
// label labelBytes and its strings.
const (
	attributeBytes = 64
	groupBytes     = 2 << 10
	labelBytes     = 32
)

// read counts the bytes of strings before they are copied. It returns an error if they exceed the limit of
// one profile, or if the request has copied too many.
func (c *otlpConverter) read(bytes int) error {
	large := bytes > c.limits.DecompressedBytes
	if large {
		bytes = attributeBytes // they are not copied
	}
	if c.reads -= bytes; c.reads < 0 {
		return fmt.Errorf("%w: the texts of the request, with repetitions, have more than %d bytes%s", pprof.ErrLimit,
			readsMax(c.limits), c.limits.Flags.Of("BurstBytes"))
	}
	if large {
		return c.tooLarge()
	}
	return nil
}

// tooLarge returns the error of a profile that is too large as pprof.
func (c *otlpConverter) tooLarge() error {
	return fmt.Errorf("%w: more than %d bytes as pprof%s", pprof.ErrLimit, c.limits.DecompressedBytes,
		c.limits.Flags.Of("DecompressedBytes"))
}

// full returns the error of a profile for which the previous profiles of the request left no bytes.
func (c *otlpConverter) full() error {
	return fmt.Errorf("%w: the profiles of the request have more than %d bytes as pprof%s", pprof.ErrLimit,
		c.limits.BurstBytes, c.limits.Flags.Of("BurstBytes"))
}

// attributes returns a function that calls f with each attribute until an error occurs, and a pointer to
// that error. The attributes of one profile or sample are limited to the bytes of one pprof.
func (c *otlpConverter) attributes(f func(key []byte, v otlp.Value)) (read func(key []byte,
	v otlp.Value), failed *error) {
	failed, total := new(error), 0
	return func(key []byte, v otlp.Value) {
		if *failed != nil {
			return
		}
		n := attributeBytes + len(key) + len(v.Text)
		if *failed = c.read(n); *failed != nil {
			return
		}
		if total += n; total > c.limits.DecompressedBytes {
			*failed = c.tooLarge()
			return
		}
		f(key, v)
	}, failed
}

// convert converts a profile to one profile for each service that its samples belong to.
func (c *otlpConverter) convert(p *otlp.Profile) ([]profilepb.RawProfile, error) {
	c.profile, c.factor, c.groups, c.order = p, 1, map[string]*otlpGroup{}, nil
	if c.left < 0 {
		return nil, c.full()
	}
	t, err := c.typeOf(p)
	if err != nil {
		return nil, err
	}
	if p.TimeNS > math.MaxInt64 || p.DurationNS > math.MaxInt64 {
		return nil, badRequest("its time %d or duration %d is beyond the year 2262", p.TimeNS, p.DurationNS)
	}
	own := map[string]string{}
	read, failed := c.attributes(func(key []byte, v otlp.Value) {
		if name, text := otlpLabelName(key), otlpLabelValue(v); name != "" && text != "" {
			own[name] = text
		}
	})
	if err = c.request.Attributes(p, read); err == nil {
		err = *failed
	}
	if err != nil {
		return nil, err
	}
	c.common = 0
	for name, text := range own {
		c.common += labelBytes + len(name) + len(text)
	}
	samples := c.request.Samples(p)
	for i := range samples {
		if err := c.sample(&samples[i], t, own[profiles.LabelService]); err != nil {
			return nil, fmt.Errorf("samples[%d]: %w", i, err)
		}
	}
	id := profiles.ID(p.ID)
	all := make([]profilepb.RawProfile, 0, len(c.order))
	for _, g := range c.order {
		raw := profilepb.RawProfile{Raw: g.encoder.Append(nil), TimeNS: int64(p.TimeNS)}
		if id != (profiles.ID{}) && len(c.order) == 1 { // an ID belongs to one profile
			raw.ID = id.String()
		}
		own[profiles.LabelService], own[profiles.LabelName] = g.service, profileName([]string{t.name}, nil, "")
		for _, name := range slices.Sorted(maps.Keys(own)) {
			raw.Labels = append(raw.Labels, profilepb.RawLabel{Name: name, Value: own[name]})
		}
		all = append(all, raw)
	}
	return all, nil
}

// typeOf reads the type of a profile. If a CPU profile has counts of samples, they are
// converted to nanoseconds, the unit of other CPU profiles.
func (c *otlpConverter) typeOf(p *otlp.Profile) (t otlpType, err error) {
	for _, one := range []struct {
		to     *string
		number int32
	}{{&t.name, p.Type.Type}, {&t.unit, p.Type.Unit}, {&t.period, p.PeriodType.Type}, {&t.periodUnit, p.PeriodType.Unit}} {
		text, err := c.request.Text(one.number)
		if err == nil {
			err = c.read(len(text))
		}
		if err != nil {
			return t, fmt.Errorf("sample_type or period_type: %w", err)
		}
		*one.to = strings.ToValidUTF8(string(text), "\uFFFD")
	}
	if t.name == "" {
		return t, badRequest("it has no sample type")
	}
	if t.name == "samples" && t.unit == "count" && t.period == "cpu" && t.periodUnit == "nanoseconds" && p.Period > 0 {
		t.name, t.unit, c.factor = "cpu", "nanoseconds", p.Period
	}
	return t, nil
}

func (c *otlpConverter) sample(s *otlp.Sample, t otlpType, service string) error {
	value := s.Value()
	if value > math.MaxInt64/c.factor {
		return badRequest("%d samples of %d ns overflow a value", value, c.factor)
	}
	own, executable := "", ""
	c.labels = c.labels[:0]
	read, failed := c.attributes(func(key []byte, v otlp.Value) {
		if v.Kind != otlp.Text && v.Kind != otlp.Bool {
			return // each number, such as a thread ID, would create a series
		}
		name, text := otlpLabelName(key), otlpLabelValue(v)
		switch {
		case name == "" || text == "":
			return
		case name == profiles.LabelService:
			own = text
			return
		case name == "process_executable_name":
			executable = text
		}
		c.labels = append(c.labels, [2]string{name, text})
	})
	err := c.request.SampleAttributes(s, read)
	if err == nil {
		err = *failed
	}
	if err != nil {
		return err
	}
	link, ok, err := c.request.Link(s)
	if err != nil {
		return err
	}
	if ok && link.Span != [8]byte{} {
		c.labels = append(c.labels, [2]string{profiles.SampleSpanID, hex.EncodeToString(link.Span[:])})
		if link.Trace != [16]byte{} {
			c.labels = append(c.labels, [2]string{profiles.SampleTraceID, hex.EncodeToString(link.Trace[:])})
		}
	}
	locations, err := c.request.Stack(s)
	if err != nil {
		return err
	}
	return c.add(c.group(cmp.Or(own, service, executable, unknownService), t), locations, value*c.factor)
}

// group returns the profile of a service.
func (c *otlpConverter) group(service string, t otlpType) *otlpGroup {
	g := c.groups[service]
	if g == nil {
		g = &otlpGroup{service: service, encoder: pprof.NewEncoder(), functions: map[int32]uint64{}, lines: map[int]uint64{},
			addresses: map[int32]uint64{}}
		g.encoder.SampleType(t.name, t.unit)
		g.encoder.Period(t.period, t.periodUnit, c.profile.Period)
		g.encoder.Times(int64(c.profile.TimeNS), int64(c.profile.DurationNS)) // checked by convert
		c.groups[service], c.order = g, append(c.order, g)
		c.left -= g.encoder.Bytes() + groupBytes + c.common
	}
	return g
}

// add adds a sample to a group. A small request could become a large pprof, because many
// samples share a stack and many profiles share a function. So the bytes of the pprof are
// limited while it grows.
func (c *otlpConverter) add(g *otlpGroup, locations []int32, value int64) error {
	before := g.encoder.Bytes()
	c.stack = c.stack[:0]
	var err error
	for _, n := range slices.Backward(locations) { // from the root: a stack that is too deep loses its leaf
		if err = c.frames(g, n); err != nil || len(c.stack) > c.limits.Depth {
			break // one frame more than the limit, so that the decoder counts the cut
		}
	}
	if err == nil {
		slices.Reverse(c.stack)
		g.encoder.LabelledSample(c.stack, c.labels, value)
		err = c.fits(g)
	}
	if c.left -= g.encoder.Bytes() - before; c.left < 0 && err == nil {
		err = c.full()
	}
	return err
}

// frames adds the frames of a location to the current stack.
func (c *otlpConverter) frames(g *otlpGroup, location int32) error {
	l := c.request.Location(location)
	if l.Lines.From == l.Lines.To {
		id, err := c.address(g, location, l)
		c.stack = append(c.stack, id)
		return err
	}
	for at := l.Lines.To - 1; at >= l.Lines.From && len(c.stack) <= c.limits.Depth; at-- {
		id, err := c.line(g, location, l, at)
		if err != nil {
			return err
		}
		c.stack = append(c.stack, id)
	}
	return nil
}

// fits returns an error if a profile has become too large.
func (c *otlpConverter) fits(g *otlpGroup) error {
	if g.encoder.Bytes() > c.limits.DecompressedBytes {
		return c.tooLarge()
	}
	return nil
}

// line returns the location of a line or, if the line has no function, of the address.
func (c *otlpConverter) line(g *otlpGroup, location int32, l otlp.Location, at int) (uint64, error) {
	line := c.request.Line(at)
	if line.Function == 0 {
		return c.address(g, location, l)
	}
	id, ok := g.lines[at]
	if ok {
		return id, nil
	}
	function, ok := g.functions[line.Function]
	if !ok {
		name, system, file, start := c.request.Function(line.Function)
		if err := c.read(len(name) + len(system) + len(file)); err != nil {
			return 0, err
		}
		function = g.encoder.Function(valid(name), valid(system), valid(file), start)
		g.functions[line.Function] = function
	}
	id = g.encoder.Location(function, max(0, line.Line))
	g.lines[at] = id
	return id, c.fits(g)
}

// address returns the location of an address without a function.
func (c *otlpConverter) address(g *otlpGroup, location int32, l otlp.Location) (uint64, error) {
	id, ok := g.addresses[location]
	if ok {
		return id, nil
	}
	file := c.request.MappingFile(l.Mapping)
	if err := c.read(len(file)); err != nil {
		return 0, err
	}
	name := "0x" + strconv.FormatUint(l.Address, 16)
	id = g.encoder.Location(g.encoder.Function(name, name, valid(file), 0), 0)
	g.addresses[location] = id
	return id, c.fits(g)
}

func valid(text []byte) string {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	return string(text)
}

// otlpLabelName returns the label name of an attribute. Characters that are invalid in a
// label name become underscores. An attribute whose name begins with two underscores has no
// label, because such names belong to the server.
func otlpLabelName(key []byte) string {
	if bytes.HasPrefix(key, []byte("__")) || len(key) == 0 {
		return ""
	}
	name := make([]byte, 0, len(key)+1)
	if key[0] >= '0' && key[0] <= '9' {
		name = append(name, '_')
	}
	for _, b := range key {
		if b != '_' && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') {
			b = '_'
		}
		name = append(name, b)
	}
	return string(name)
}

// otlpLabelValue returns the text of an attribute; "" for lists, maps and bytes.
func otlpLabelValue(v otlp.Value) string {
	switch v.Kind {
	case otlp.Text:
		return valid(v.Text)
	case otlp.Bool:
		return strconv.FormatBool(v.Bits != 0)
	case otlp.Int:
		return strconv.FormatInt(int64(v.Bits), 10)
	case otlp.Double:
		return strconv.FormatFloat(math.Float64frombits(v.Bits), 'g', -1, 64)
	}
	return ""
}

// Refused counts a request of OTLP that could not be decoded.
func (in *Ingester) Refused(err error) { in.discarded.With(reasonOf(err)).Inc() }

// PushOTLP ingests the valid profiles of a request. It returns the number of the rejected
// profiles and the first of their errors, which names the profile. If err is not nil, no
// profile was ingested.
func (in *Ingester) PushOTLP(ctx context.Context, tenant string, r *otlp.Request) (rejected int, first, err error) {
	limits := in.limitsOf(tenant)
	c := &otlpConverter{request: r, limits: limits, left: limits.BurstBytes, reads: readsMax(limits)}
	var pushed []profilepb.RawProfile
	var source []int // pushed[n] is a part of r.Profiles[source[n]]
	failed := map[int]error{}
	for i := range r.Profiles {
		if err := ctx.Err(); err != nil {
			return 0, nil, err
		}
		all, err := c.convert(&r.Profiles[i])
		if err != nil {
			failed[i] = err
			in.discarded.With(reasonOf(err)).Inc()
			continue
		}
		pushed = append(pushed, all...)
		for range all {
			source = append(source, i)
		}
	}
	refused := map[int]error{}
	if len(pushed) > 0 {
		if err := in.ingest(ctx, tenant, pushed, refused); err != nil {
			return 0, nil, err
		}
	}
	for n := range pushed {
		if err := refused[n]; err != nil && failed[source[n]] == nil {
			failed[source[n]] = err
		}
	}
	if len(failed) == 0 {
		return 0, nil, nil
	}
	i := slices.Min(slices.Collect(maps.Keys(failed)))
	first = fmt.Errorf("%s: %w", r.Profiles[i].Place(), failed[i])
	if len(refused) == len(pushed) {
		return 0, nil, first
	}
	return len(failed), first, nil
}
