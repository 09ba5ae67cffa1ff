package pprof

import "math"

// Field numbers of the profile.
const (
	fieldSampleType = 1
	fieldSample     = 2
	fieldMapping    = 3
	fieldLocation   = 4
	fieldFunction   = 5
	fieldString     = 6
	fieldTime       = 9
	fieldDuration   = 10
	fieldPeriodType = 11
	fieldPeriod     = 12
)

// walk decodes the messages. Their references are validated later.
func (p *Profile) walk() error {
	if uint64(len(p.raw)) > math.MaxInt32 {
		return tooMany("bytes", len(p.raw), math.MaxInt32, "")
	}
	for at := 0; at < len(p.raw); {
		// a short text, as most fields are
		if b := p.raw; b[at] == fieldString<<3|2 && at+1 < len(b) && b[at+1] < 0x80 && int(b[at+1]) <= len(b)-at-2 {
			end := at + 2 + int(b[at+1])
			if err := p.text(at+2, end); err != nil {
				return err
			}
			at = end
			continue
		}
		f, next, err := p.next(at, len(p.raw))
		if err != nil {
			return err
		}
		at = next
		if f.number >= fieldSampleType && f.number <= fieldString || f.number == fieldPeriodType {
			if err := f.wants(true, at); err != nil {
				return err
			}
		}
		switch f.number {
		case fieldSampleType:
			err = p.sampleType(f)
		case fieldSample:
			err = p.sample(f)
		case fieldMapping:
			err = p.mapping(f)
		case fieldLocation:
			err = p.location(f)
		case fieldFunction:
			err = p.function(f)
		case fieldString:
			err = p.text(f.from, f.to)
		case fieldTime:
			p.TimeNS = int64(f.value)
		case fieldDuration:
			p.DurationNS = int64(f.value)
		case fieldPeriodType:
			p.PeriodType, err = p.valueType(f)
		case fieldPeriod:
			p.Period = int64(f.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Profile) text(from, to int) error {
	p.strings = append(p.strings, span{uint32(from), uint32(to)})
	if len(p.strings) > p.limits.Strings {
		return tooMany("strings", len(p.strings), p.limits.Strings, p.limits.Flags.Of("Symbols"))
	}
	return nil
}

// numbersMax limits the field numbers that numbers decodes: they are below numbersMax.
const numbersMax = 8

// numbers decodes the number fields below numbersMax of a message. Of a repeated field the
// last value counts, as in protobuf. Most messages of a profile have only such fields. So the
// usual field is decoded inline: a tag of one byte and a number of one or two bytes.
func (p *Profile) numbers(f field, out *[numbersMax]uint64) error {
	b := p.raw // not cut at f.to: reading past the message is harmless, and the last field needs no special case
	for at := f.from; at < f.to; {
		tag := b[at]
		if tag&7 == 0 && tag < numbersMax<<3 && tag >= 1<<3 && at+2 < len(b) {
			v := uint64(b[at+1])
			if v < 0x80 && at+2 <= f.to {
				out[tag>>3&(numbersMax-1)] = v
				at += 2
				continue
			}
			if c := uint64(b[at+2]); v >= 0x80 && c < 0x80 && at+3 <= f.to {
				out[tag>>3&(numbersMax-1)] = v&0x7F | c<<7
				at += 3
				continue
			}
		}
		sub, next, err := p.next(at, f.to)
		if err != nil {
			return err
		}
		if !sub.bytes && sub.number < numbersMax {
			out[sub.number] = sub.value
		}
		at = next
	}
	return nil
}

// index limits a reference to 32 bits. A value that is too large stays invalid.
func index(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }

func (p *Profile) valueType(f field) (ValueType, error) {
	var n [numbersMax]uint64
	err := p.numbers(f, &n)
	return ValueType{Type: index(n[1]), Unit: index(n[2])}, err
}

func (p *Profile) sampleType(f field) error {
	v, err := p.valueType(f)
	if err != nil {
		return err
	}
	p.SampleTypes = append(p.SampleTypes, v)
	if len(p.SampleTypes) > p.limits.SampleTypes {
		return tooMany("sample types", len(p.SampleTypes), p.limits.SampleTypes, "")
	}
	return nil
}

func (p *Profile) sample(f field) error {
	s := Sample{locFrom: uint32(len(p.locIDs)), valFrom: uint32(len(p.values)), labelFrom: uint32(len(p.labels))}
	if len(p.Samples) >= p.limits.Samples {
		return tooMany("samples", len(p.Samples)+1, p.limits.Samples, p.limits.Flags.Of("Samples"))
	}
	for at := f.from; at < f.to; {
		sub, next, err := p.next(at, f.to)
		if err != nil {
			return err
		}
		at = next
		switch sub.number {
		case 1:
			err = p.stackIDs(sub, int(s.locFrom))
		case 2:
			err = p.sampleValues(sub, int(s.valFrom))
		case 3:
			err = p.label(sub)
		}
		if err != nil {
			return err
		}
	}
	p.cutIDs(int(s.locFrom))
	s.locTo, s.labelTo = uint32(len(p.locIDs)), uint32(len(p.labels))
	if n := len(p.values) - int(s.valFrom); n != len(p.SampleTypes) && !p.typesFollow(f, n) {
		return corrupt("sample %d has %d values for %d sample types", len(p.Samples), n, len(p.SampleTypes))
	}
	for _, v := range p.values[s.valFrom:] {
		if v < 0 {
			p.locIDs, p.values, p.labels = p.locIDs[:s.locFrom], p.values[:s.valFrom], p.labels[:s.labelFrom]
			p.Repairs.Negative++
			return nil
		}
	}
	p.Samples = append(p.Samples, s)
	return nil
}

// cutIDs removes locations at the leaf from a stack that has more than Limits.Depth + 1. The one
// location above the limit remains, so that cutStacks cuts the stack and counts it in
// Repairs.Depth.
func (p *Profile) cutIDs(from int) {
	if over := len(p.locIDs) - from - p.limits.Depth - 1; over > 0 {
		p.locIDs = append(p.locIDs[:from], p.locIDs[from+over:]...)
	}
}

// typesFollow reports whether more sample types may follow sample f, which has n values. Then
// resolve checks the number of values, after the whole profile was decoded.
func (p *Profile) typesFollow(f field, n int) bool {
	return n > len(p.SampleTypes) && f.to < len(p.raw)
}

func (p *Profile) stackIDs(sub field, from int) error {
	if !sub.bytes {
		p.locIDs = append(p.locIDs, sub.value)
	} else {
		ids, raw := p.locIDs, p.raw[:sub.to]
		for at := sub.from; at < sub.to; {
			v := uint64(raw[at])
			switch {
			case v < 0x80:
				at++
			case at+1 < len(raw) && raw[at+1] < 0x80:
				v = v&0x7F | uint64(raw[at+1])<<7
				at += 2
			default:
				if v, at = uvarint(raw, at); at < 0 {
					return corrupt("locations of sample %d are cut short", len(p.Samples))
				}
			}
			ids = append(ids, v)
			if len(ids)-from > 2*p.limits.Depth {
				p.locIDs = ids
				p.cutIDs(from)
				ids = p.locIDs
			}
		}
		p.locIDs = ids
	}
	if len(p.locIDs)-from > 2*p.limits.Depth {
		p.cutIDs(from)
	}
	return nil
}

func (p *Profile) sampleValues(sub field, from int) error {
	if !sub.bytes {
		p.values = append(p.values, int64(sub.value))
	}
	for at := sub.from; at < sub.to; {
		var v uint64
		if v, at = uvarint(p.raw[:sub.to], at); at < 0 {
			return corrupt("values of sample %d are cut short", len(p.Samples))
		}
		p.values = append(p.values, int64(v))
	}
	if n := len(p.values) - from; n > p.limits.SampleTypes {
		return tooMany("values of one sample", n, p.limits.SampleTypes, "")
	}
	return nil
}

func (p *Profile) label(f field) error {
	if err := f.wants(true, f.to); err != nil {
		return err
	}
	var n [numbersMax]uint64
	err := p.numbers(f, &n)
	p.labels = append(p.labels, Label{Key: index(n[1]), Text: index(n[2]), Number: int64(n[3])})
	return err
}

func (p *Profile) mapping(f field) error {
	var n [numbersMax]uint64
	if err := p.numbers(f, &n); err != nil {
		return err
	}
	p.Mappings = append(p.Mappings, Mapping{id: n[1], Start: n[2], Limit: n[3], Offset: n[4], File: index(n[5]),
		BuildID: index(n[6])})
	if len(p.Mappings) > p.limits.Functions {
		return tooMany("mappings", len(p.Mappings), p.limits.Functions, p.limits.Flags.Of("Symbols"))
	}
	return nil
}

func (p *Profile) location(f field) error {
	from := len(p.Lines)
	var n [numbersMax]uint64
	b := p.raw[:f.to]
	for at := f.from; at < len(b); {
		if b[at] == 4<<3|2 && at+1 < len(b) && b[at+1] < 0x80 && int(b[at+1]) <= len(b)-at-2 { // a short line
			end := at + 2 + int(b[at+1])
			if err := p.line(field{from: at + 2, to: end}); err != nil {
				return err
			}
			at = end
			continue
		}
		// a number; an address has many bytes
		if tag := b[at]; tag&7 == 0 && tag < numbersMax<<3 && tag >= 1<<3 && tag != 4<<3 {
			if v, next := uvarint(b, at+1); next > 0 {
				n[tag>>3&(numbersMax-1)] = v
				at = next
				continue
			}
		}
		sub, next, err := p.next(at, f.to)
		if err != nil {
			return err
		}
		at = next
		switch {
		case sub.number == 4:
			if err := sub.wants(true, at); err != nil {
				return err
			}
			if err := p.line(sub); err != nil {
				return err
			}
		case sub.number < numbersMax:
			n[sub.number] = sub.value
		}
	}
	p.Locations = append(p.Locations, Location{id: n[1], mappingID: n[2], Address: n[3], Mapping: -1, From: uint32(from),
		To: uint32(len(p.Lines))})
	if len(p.Locations) > p.limits.Locations {
		return tooMany("locations", len(p.Locations), p.limits.Locations, p.limits.Flags.Of("Symbols"))
	}
	return nil
}

func (p *Profile) line(f field) error {
	var n [numbersMax]uint64
	if err := p.numbers(f, &n); err != nil {
		return err
	}
	p.Lines = append(p.Lines, Line{id: n[1], Line: int64(n[2])})
	return nil
}

func (p *Profile) function(f field) error {
	var n [numbersMax]uint64
	if err := p.numbers(f, &n); err != nil {
		return err
	}
	p.Functions = append(p.Functions, Function{id: n[1], Name: index(n[2]), System: index(n[3]), File: index(n[4]),
		StartLine: int64(n[5])})
	if len(p.Functions) > p.limits.Functions {
		return tooMany("functions", len(p.Functions), p.limits.Functions, p.limits.Flags.Of("Symbols"))
	}
	return nil
}
