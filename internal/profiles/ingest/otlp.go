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
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// otlpConverter converts the profiles of one request to pprofs.
type otlpConverter struct {
	request *otlpExport
	limits  *Limits
	left    int // bytes of pprofs that the request may still become
	reads   int // bytes of strings that may still be copied: all profiles and samples may refer to the same long strings

	// Fields of the current profile:
	timeNS                             protoFixed
	durationNS                         uint64
	period                             int64
	name, unit, periodType, periodUnit string
	factor                             int64 // nanoseconds per sample if the values are counts of a CPU profile, else 1
	common                             int   // bytes of the labels that the pprofs of all its services have
	groups                             map[string]*otlpGroup
	order                              []*otlpGroup

	// Fields of the current sample:
	locations []int32 // leaf first
	stack     []uint64
	labels    [][2]string
}

// otlpGroup is the pprof of the samples of one service.
type otlpGroup struct {
	service   string
	encoder   *pprof.Encoder
	functions map[int32]uint64
	frames    map[int32][]uint64 // by location, the outermost caller first
}

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
	if bytes > c.limits.DecompressedBytes {
		return cmp.Or(c.charge(attributeBytes), c.tooLarge()) // they are not copied
	}
	return c.charge(bytes)
}

// charge counts bytes of strings and messages, which profiles and samples may read again and again.
func (c *otlpConverter) charge(bytes int) error {
	if c.reads -= bytes; c.reads < 0 {
		return fmt.Errorf("%w: the strings of the request, with repetitions, have more than %d bytes%s", pprof.ErrLimit,
			readsMax(c.limits), c.limits.Flags.Of("BurstBytes"))
	}
	return nil
}

// element passes the fields of an element of the dictionary to f.
func (c *otlpConverter) element(table otlpTable, i int32, f func(protoField) error) error {
	message, err := c.request.element(table, i)
	if err == nil {
		err = c.charge(len(message))
	}
	if err != nil {
		return err
	}
	return atOTLP(otlpTableNames[table]+"_table", int(i), eachField(message, f))
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

// attribute counts an attribute and calls f with its name and text as a label, unless it has none. total has the bytes
// of the attributes of the same profile or sample, which are limited to the bytes of one pprof.
func (c *otlpConverter) attribute(total *int, key []byte, v *otlpValue, f func(name, text string)) error {
	n := attributeBytes + len(key) + len(v.text)
	if err := c.read(n); err != nil {
		return err
	}
	if *total += n; *total > c.limits.DecompressedBytes {
		return c.tooLarge()
	}
	if name, text := otlpLabelName(key), otlpLabelValue(v); name != "" && text != "" {
		f(name, text)
	}
	return nil
}

// inline passes the attributes of a resource or a scope to add. number is the field that has them.
func (c *otlpConverter) inline(src []byte, number protowire.Number, add func(key []byte, v *otlpValue) error) error {
	if err := c.charge(len(src)); err != nil {
		return err
	}
	n := 0
	return eachField(src, func(f protoField) error {
		if f.number != number {
			return nil
		}
		var key []byte
		var v otlpValue
		var reference int32
		if f.kind != protowire.BytesType {
			return f.wrongType()
		}
		err := eachField(f.b, func(f protoField) error {
			return f.set(&key, func(b []byte) error { return v.decode(c.request, b) }, &reference)
		})
		if err == nil && reference != 0 {
			key, err = c.request.element(otlpStrings, reference)
		}
		if err == nil {
			err = add(key, &v)
		}
		n++
		return atOTLP("attributes", n-1, err)
	})
}

// listed passes attributes of the dictionary to add. f is the field with their indexes.
func (c *otlpConverter) listed(f protoField, add func(key []byte, v *otlpValue) error) error {
	return f.numbers(protowire.VarintType, func(n uint64) error {
		var v otlpValue
		var key int32
		err := c.element(otlpAttributes, protoIndex(n), func(f protoField) error {
			return f.set(&key, func(b []byte) error { return v.decode(c.request, b) })
		})
		if err != nil {
			return err
		}
		name, err := c.request.element(otlpStrings, key)
		if err != nil {
			return err
		}
		return add(name, &v)
	})
}

// convert converts a profile to one profile for each service that its samples belong to.
func (c *otlpConverter) convert(p *otlpProfile) ([]profilepb.RawProfile, error) {
	c.groups, c.order, c.common = map[string]*otlpGroup{}, nil, 0
	if c.left < 0 {
		return nil, c.full()
	}
	own, total := map[string]string{}, 0
	add := func(key []byte, v *otlpValue) error {
		return c.attribute(&total, key, v, func(name, text string) { own[name] = text })
	}
	err := c.inline(*p.resource, 1, add)
	if err == nil {
		err = c.inline(*p.scope, 3, add)
	}
	var id profiles.ID
	if err == nil {
		id, err = c.header(p.message, add)
	}
	if err != nil {
		return nil, err
	}
	for name, text := range own {
		c.common += labelBytes + len(name) + len(text)
	}
	samples := 0
	if err := eachField(p.message, func(f protoField) error {
		return f.set(nil, func(b []byte) error {
			samples++
			return atOTLP("samples", samples-1, c.sample(b, own[profiles.LabelService]))
		})
	}); err != nil {
		return nil, err
	}
	all := make([]profilepb.RawProfile, 0, len(c.order))
	for _, g := range c.order {
		raw := profilepb.RawProfile{Raw: g.encoder.Append(nil), TimeNS: int64(c.timeNS)}
		if id != (profiles.ID{}) && len(c.order) == 1 { // an ID belongs to one profile
			raw.ID = id.String()
		}
		own[profiles.LabelService], own[profiles.LabelName] = g.service, profileName([]string{c.name}, nil, "")
		for _, name := range slices.Sorted(maps.Keys(own)) {
			raw.Labels = append(raw.Labels, profilepb.RawLabel{Name: name, Value: own[name]})
		}
		all = append(all, raw)
	}
	return all, nil
}

// header reads the fields of a profile other than its samples. If a CPU profile has counts of samples, they are
// converted to nanoseconds, the unit of other CPU profiles. add adds an attribute.
func (c *otlpConverter) header(message []byte, add func(key []byte, v *otlpValue) error) (id profiles.ID, err error) {
	c.factor, c.timeNS, c.durationNS, c.period = 1, 0, 0, 0
	c.name, c.unit, c.periodType, c.periodUnit = "", "", "", ""
	var types [4]int32
	if err := eachField(message, func(f protoField) error {
		if f.number == 11 {
			return c.listed(f, add)
		}
		return f.set(func(b []byte) error {
			return eachField(b, func(f protoField) error { return f.set(&types[0], &types[1]) })
		}, nil, &c.timeNS, &c.durationNS, func(b []byte) error {
			return eachField(b, func(f protoField) error { return f.set(&types[2], &types[3]) })
		}, &c.period, id[:])
	}); err != nil {
		return id, err
	}
	for i, to := range []*string{&c.name, &c.unit, &c.periodType, &c.periodUnit} {
		text, err := c.request.element(otlpStrings, types[i])
		if err == nil {
			err = c.read(len(text))
		}
		if err != nil {
			return id, fmt.Errorf("sample_type or period_type: %w", err)
		}
		*to = valid(text)
	}
	if c.name == "" {
		return id, badRequest("it has no sample type")
	}
	if c.timeNS > math.MaxInt64 || c.durationNS > math.MaxInt64 {
		return id, badRequest("its time %d or duration %d is beyond the year 2262", c.timeNS, c.durationNS)
	}
	if c.name == "samples" && c.unit == "count" && c.periodType == "cpu" && c.periodUnit == "nanoseconds" && c.period > 0 {
		c.name, c.unit, c.factor = "cpu", "nanoseconds", c.period
	}
	return id, nil
}

// sample adds a sample to the profile of its service. Its value is the sum of its values or, without any, the number of
// its timestamps. A negative value makes the sum negative: pprof.Decode drops such a sample later.
func (c *otlpConverter) sample(message []byte, service string) error {
	var stack, link int32
	var sum int64
	values, times, total := 0, 0, 0
	own, executable := "", ""
	c.labels = c.labels[:0]
	label := func(name, text string) {
		switch name {
		case profiles.LabelService:
			own = text
			return
		case "process_executable_name":
			executable = text
		}
		c.labels = append(c.labels, [2]string{name, text})
	}
	add := func(key []byte, v *otlpValue) error {
		if v.kind == otlpText || v.kind == otlpBool {
			return c.attribute(&total, key, v, label)
		}
		return c.attribute(&total, key, v, func(string, string) {}) // each number, such as a thread ID, would create a series
	}
	if err := eachField(message, func(f protoField) error {
		switch f.number {
		case 2:
			return c.listed(f, add)
		case 4:
			return f.numbers(protowire.VarintType, func(n uint64) error {
				values++
				switch v := int64(n); {
				case sum < 0 || v < 0:
					sum = -1
				case sum > math.MaxInt64-v:
					return invalidOTLP("the sum of the values overflows")
				default:
					sum += v
				}
				return nil
			})
		case 5:
			return f.numbers(protowire.Fixed64Type, func(uint64) error {
				times++
				return nil
			})
		}
		return f.set(&stack, nil, &link)
	}); err != nil {
		return err
	}
	switch {
	case values == 0:
		sum = int64(times)
	case times > 0 && times != values:
		return invalidOTLP("%d values at %d timestamps", values, times)
	}
	if sum > math.MaxInt64/c.factor {
		return badRequest("%d samples of %d ns overflow a value", sum, c.factor)
	}
	if err := c.span(link); err != nil {
		return err
	}
	if err := c.readStack(stack); err != nil {
		return err
	}
	return c.add(c.group(cmp.Or(own, service, executable, unknownService)), sum*c.factor)
}

// span adds the labels of a span to the current sample.
func (c *otlpConverter) span(link int32) error {
	if link == 0 {
		return nil
	}
	var trace [16]byte
	var span [8]byte
	if err := c.element(otlpLinks, link, func(f protoField) error { return f.set(trace[:], span[:]) }); err != nil {
		return err
	}
	if span == [8]byte{} {
		return nil
	}
	c.labels = append(c.labels, [2]string{profiles.SampleSpanID, hex.EncodeToString(span[:])})
	if trace != [16]byte{} {
		c.labels = append(c.labels, [2]string{profiles.SampleTraceID, hex.EncodeToString(trace[:])})
	}
	return nil
}

// readStack reads the locations of the current sample, leaf first. Of a stack that is too deep it keeps one location
// more than the limit of frames, at the root, so that the decoder counts the cut.
func (c *otlpConverter) readStack(stack int32) error {
	c.locations = c.locations[:0]
	return c.element(otlpStacks, stack, func(f protoField) error {
		if f.number != 1 {
			return nil
		}
		return f.numbers(protowire.VarintType, func(n uint64) error {
			if keep := c.limits.Depth + 1; len(c.locations) >= 2*keep {
				c.locations = append(c.locations[:0], c.locations[len(c.locations)-keep:]...)
			}
			c.locations = append(c.locations, protoIndex(n))
			return nil
		})
	})
}

func (c *otlpConverter) group(service string) *otlpGroup {
	g := c.groups[service]
	if g == nil {
		g = &otlpGroup{service: service, encoder: pprof.NewEncoder(), functions: map[int32]uint64{},
			frames: map[int32][]uint64{}}
		g.encoder.SampleType(c.name, c.unit)
		g.encoder.Period(c.periodType, c.periodUnit, c.period)
		g.encoder.Times(int64(c.timeNS), int64(c.durationNS)) // checked by header
		c.groups[service], c.order = g, append(c.order, g)
		c.left -= g.encoder.Bytes() + groupBytes + c.common
	}
	return g
}

// add adds the current sample to a group. A small request could become a large pprof, because many samples share a
// stack and many profiles share a function. So the bytes of the pprof are limited while it grows.
func (c *otlpConverter) add(g *otlpGroup, value int64) error {
	before := g.encoder.Bytes()
	c.stack = c.stack[:0]
	var err error
	for _, n := range slices.Backward(c.locations) { // from the root: a stack that is too deep loses its leaf
		frames, known := g.frames[n]
		if !known {
			if frames, err = c.location(g, n); err != nil {
				break
			}
			g.frames[n] = frames
		}
		if c.stack = append(c.stack, frames...); len(c.stack) > c.limits.Depth {
			c.stack = c.stack[:c.limits.Depth+1] // one frame more than the limit, so that the decoder counts the cut
			break
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

// location encodes the frames of a location, the outermost caller first: its lines, or its address if it has none. A
// line without a function becomes the address, too.
func (c *otlpConverter) location(g *otlpGroup, number int32) (frames []uint64, err error) {
	var mapping int32
	var address uint64
	var lines [][2]int64 // function and line
	if err := c.element(otlpLocations, number, func(f protoField) error {
		return f.set(&mapping, &address, func(b []byte) error {
			var function int32
			var line int64
			err := eachField(b, func(f protoField) error { return f.set(&function, &line) })
			if len(lines) > 2*c.limits.Depth { // more than any stack may have
				lines = append(lines[:0], lines[c.limits.Depth:]...)
			}
			lines = append(lines, [2]int64{int64(function), max(0, line)})
			return err
		})
	}); err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		lines = [][2]int64{{}}
	}
	var ofAddress uint64
	for _, l := range slices.Backward(lines[max(0, len(lines)-c.limits.Depth-1):]) {
		if l[0] != 0 {
			function, err := c.function(g, int32(l[0]))
			if err != nil {
				return nil, err
			}
			frames = append(frames, g.encoder.Location(function, l[1]))
		} else {
			if ofAddress == 0 {
				if ofAddress, err = c.address(g, mapping, address); err != nil {
					return nil, err
				}
			}
			frames = append(frames, ofAddress)
		}
		if err := c.fits(g); err != nil {
			return nil, err
		}
	}
	return frames, nil
}

func (c *otlpConverter) fits(g *otlpGroup) error {
	if g.encoder.Bytes() > c.limits.DecompressedBytes {
		return c.tooLarge()
	}
	return nil
}

// function encodes a function once, and returns its id.
func (c *otlpConverter) function(g *otlpGroup, number int32) (uint64, error) {
	id, ok := g.functions[number]
	if ok {
		return id, nil
	}
	var numbers [3]int32 // name, system name, file
	var start int64
	if err := c.element(otlpFunctions, number, func(f protoField) error {
		return f.set(&numbers[0], &numbers[1], &numbers[2], &start)
	}); err != nil {
		return 0, err
	}
	var texts [3][]byte
	for i, n := range numbers {
		var err error
		if texts[i], err = c.request.element(otlpStrings, n); err != nil {
			return 0, err
		}
	}
	if err := c.read(len(texts[0]) + len(texts[1]) + len(texts[2])); err != nil {
		return 0, err
	}
	id = g.encoder.Function(valid(texts[0]), valid(texts[1]), valid(texts[2]), start)
	g.functions[number] = id
	return id, nil
}

// address encodes the location of an address without a function.
func (c *otlpConverter) address(g *otlpGroup, mapping int32, address uint64) (uint64, error) {
	var number int32
	if err := c.element(otlpMappings, mapping, func(f protoField) error {
		return f.set(nil, nil, nil, &number)
	}); err != nil {
		return 0, err
	}
	file, err := c.request.element(otlpStrings, number)
	if err == nil {
		err = c.read(len(file))
	}
	if err != nil {
		return 0, err
	}
	name := "0x" + strconv.FormatUint(address, 16)
	return g.encoder.Location(g.encoder.Function(name, name, valid(file), 0), 0), nil
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
func otlpLabelValue(v *otlpValue) string {
	switch v.kind {
	case otlpText:
		return valid(v.text)
	case otlpBool:
		return strconv.FormatBool(v.bits != 0)
	case otlpInt:
		return strconv.FormatInt(int64(v.bits), 10)
	case otlpDouble:
		return strconv.FormatFloat(math.Float64frombits(uint64(v.double)), 'g', -1, 64)
	}
	return ""
}

// pushOTLP ingests the valid profiles of a request. It returns the number of the rejected
// profiles and the first of their errors, which names the profile. If err is not nil, no
// profile was ingested.
func (in *Ingester) pushOTLP(ctx context.Context, tenant string, r *otlpExport) (rejected int, first, err error) {
	limits := in.limitsOf(tenant)
	c := &otlpConverter{request: r, limits: limits, left: limits.BurstBytes, reads: readsMax(limits)}
	var pushed []profilepb.RawProfile
	var source []int // pushed[n] is a part of r.profiles[source[n]]
	failed := map[int]error{}
	for i := range r.profiles {
		if err := ctx.Err(); err != nil {
			return 0, nil, err
		}
		all, err := c.convert(&r.profiles[i])
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
	at := r.profiles[i].place
	first = fmt.Errorf("resource_profiles[%d].scope_profiles[%d].profiles[%d]: %w", at[0], at[1], at[2], failed[i])
	if len(refused) == len(pushed) {
		return 0, nil, first
	}
	return len(failed), first, nil
}
