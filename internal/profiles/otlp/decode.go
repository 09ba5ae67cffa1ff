package otlp

import (
	"fmt"
	"math"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
)

// Decode decodes a request in the encoding of protobuf.
func Decode(src []byte, limits Limits) (*Request, error) {
	limits = limits.withDefaults()
	d := &decoder{limits: limits, left: limits.Bytes, r: &Request{}}
	resources := 0
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			resources++
			return at("resource_profiles", resources-1, f.message(func(b []byte) error { return d.resource(b, resources-1) }))
		case 2:
			return named("dictionary", f.message(d.dictionary))
		}
		return nil
	})
	if err == nil {
		err = named("dictionary", d.r.check())
	}
	if err != nil {
		return nil, err
	}
	return d.r, nil
}

type decoder struct {
	limits Limits
	left   int // bytes of Limits.Bytes that are not used yet
	r      *Request
}

// add appends an element, and subtracts its size from the bytes that are left for the tables.
func add[E any](d *decoder, to *[]E, e E) error {
	if d.left -= int(reflect.TypeFor[E]().Size()); d.left < 0 {
		return fmt.Errorf("%w: more than %d bytes when decoded", ErrLimit, d.limits.Bytes)
	}
	*to = append(*to, e)
	return nil
}

// at adds the position of an element in a list to an error.
func at(list string, i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s[%d]: %w", list, i, err)
}

func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// field is a field of a message: a number, or bytes.
type field struct {
	number protowire.Number
	kind   protowire.Type
	n      uint64
	b      []byte
}

// each calls f with every field of a message.
func each(src []byte, f func(field) error) error {
	for len(src) > 0 {
		var got field
		var n int
		if got.number, got.kind, n = protowire.ConsumeTag(src); n < 0 {
			return corrupt("%v", protowire.ParseError(n))
		}
		src = src[n:]
		switch got.kind {
		case protowire.VarintType:
			got.n, n = protowire.ConsumeVarint(src)
		case protowire.Fixed64Type:
			got.n, n = protowire.ConsumeFixed64(src)
		case protowire.BytesType:
			got.b, n = protowire.ConsumeBytes(src)
		default:
			n = protowire.ConsumeFieldValue(got.number, got.kind, src)
		}
		if n < 0 {
			return corrupt("field %d: %v", got.number, protowire.ParseError(n))
		}
		src = src[n:]
		if err := f(got); err != nil {
			return err
		}
	}
	return nil
}

func (f field) wrongType() error { return corrupt("field %d has wire type %d", f.number, f.kind) }

func (f field) message(decode func([]byte) error) error {
	if f.kind != protowire.BytesType {
		return f.wrongType()
	}
	return decode(f.b)
}

func (f field) bytes(to *[]byte) error {
	if f.kind != protowire.BytesType {
		return f.wrongType()
	}
	*to = f.b
	return nil
}

func (f field) varint(to *uint64) error {
	if f.kind != protowire.VarintType {
		return f.wrongType()
	}
	*to = f.n
	return nil
}

func (f field) fixed(to *uint64) error {
	if f.kind != protowire.Fixed64Type {
		return f.wrongType()
	}
	*to = f.n
	return nil
}

func (f field) signed(to *int64) error {
	var n uint64
	err := f.varint(&n)
	*to = int64(n)
	return err
}

// index converts a number to an index. A number that does not fit in 31 bits becomes -1,
// which no table has.
func index(n uint64) int32 {
	if n > math.MaxInt32 {
		return -1
	}
	return int32(n)
}

func (f field) index(to *int32) error {
	var n uint64
	err := f.varint(&n)
	*to = index(n)
	return err
}

// numbers calls add with every element of a repeated number, packed or not.
func (f field) numbers(fixed bool, add func(uint64) error) error {
	switch f.kind {
	case protowire.VarintType, protowire.Fixed64Type:
		if fixed != (f.kind == protowire.Fixed64Type) {
			return f.wrongType()
		}
		return add(f.n)
	case protowire.BytesType:
	default:
		return f.wrongType()
	}
	for b := f.b; len(b) > 0; {
		var v uint64
		var n int
		if fixed {
			v, n = protowire.ConsumeFixed64(b)
		} else {
			v, n = protowire.ConsumeVarint(b)
		}
		if n < 0 {
			return corrupt("field %d: %v", f.number, protowire.ParseError(n))
		}
		b = b[n:]
		if err := add(v); err != nil {
			return err
		}
	}
	return nil
}

// listIndexes appends the indexes of a field to d.r.indexes, and extends *list by them. The
// elements of a list must be adjacent: if a message has the field twice, the caller must not
// fill another list in between.
func (d *decoder) listIndexes(f field, list *Range) error {
	if list.To == 0 || list.From == list.To {
		list.From = len(d.r.indexes)
	}
	err := f.numbers(false, func(n uint64) error { return add(d, &d.r.indexes, index(n)) })
	list.To = len(d.r.indexes)
	return err
}

func (d *decoder) resource(src []byte, number int) error {
	// Two passes, attributes first: in the message they may follow the profiles to which they belong.
	from, first := len(d.r.attributes), len(d.r.Profiles)
	err := each(src, func(f field) error {
		if f.number == 1 {
			return named("resource", f.message(d.attributes(1)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	own, scopes := Range{from, len(d.r.attributes)}, 0
	err = each(src, func(f field) error {
		if f.number != 2 {
			return nil
		}
		scopes++
		return at("scope_profiles", scopes-1, f.message(func(b []byte) error { return d.scope(b, number, scopes-1) }))
	})
	for i := first; i < len(d.r.Profiles); i++ {
		d.r.Profiles[i].ofResource = own
	}
	return err
}

func (d *decoder) scope(src []byte, resource, number int) error {
	from, first := len(d.r.attributes), len(d.r.Profiles)
	err := each(src, func(f field) error {
		if f.number == 1 {
			return named("scope", f.message(d.attributes(3)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	own, profiles := Range{from, len(d.r.attributes)}, 0
	err = each(src, func(f field) error {
		if f.number != 2 {
			return nil
		}
		profiles++
		return at("profiles", profiles-1, f.message(func(b []byte) error {
			if len(d.r.Profiles) >= d.limits.Profiles {
				return fmt.Errorf("%w: more than %d profiles", ErrLimit, d.limits.Profiles)
			}
			return d.profile(b, Profile{Resource: resource, Scope: number, Number: profiles - 1})
		}))
	})
	for i := first; i < len(d.r.Profiles); i++ {
		d.r.Profiles[i].ofScope = own
	}
	return err
}

// attributes returns a function that decodes the attributes of a message. number is the number of
// the field that has them.
func (d *decoder) attributes(number protowire.Number) func([]byte) error {
	return func(src []byte) error {
		n := 0
		return each(src, func(f field) error {
			if f.number != number {
				return nil
			}
			n++
			return at("attributes", n-1, f.message(func(b []byte) error {
				var kv KeyValue
				if err := each(b, func(f field) error {
					switch f.number {
					case 1:
						return f.bytes(&kv.Key)
					case 2:
						return f.message(func(b []byte) error { return value(b, &kv.Value) })
					case 3:
						return f.index(&kv.number)
					}
					return nil
				}); err != nil {
					return err
				}
				return add(d, &d.r.attributes, kv)
			}))
		})
	}
}

// value decodes the value of an attribute. It does not read lists and maps.
func value(src []byte, v *Value) error {
	return each(src, func(f field) error {
		switch f.number {
		case 1:
			v.Kind = Text
			return f.bytes(&v.Text)
		case 2:
			v.Kind = Bool
			return f.varint(&v.Bits)
		case 3:
			v.Kind = Int
			return f.varint(&v.Bits)
		case 4:
			v.Kind = Double
			return f.fixed(&v.Bits)
		case 5, 6, 7:
			v.Kind = Other
		case 8:
			v.Kind = reference
			return f.index(&v.number)
		}
		return nil
	})
}

func valueType(src []byte, t *ValueType) error {
	return each(src, func(f field) error {
		switch f.number {
		case 1:
			return f.index(&t.Type)
		case 2:
			return f.index(&t.Unit)
		}
		return nil
	})
}

func (d *decoder) profile(src []byte, p Profile) error {
	p.samples.From = len(d.r.samples)
	samples := 0
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return named("sample_type", f.message(func(b []byte) error { return valueType(b, &p.Type) }))
		case 2:
			samples++
			return at("samples", samples-1, f.message(d.sample))
		case 3:
			return f.fixed(&p.TimeNS)
		case 4:
			return f.varint(&p.DurationNS)
		case 5:
			return named("period_type", f.message(func(b []byte) error { return valueType(b, &p.PeriodType) }))
		case 6:
			return f.signed(&p.Period)
		case 7:
			return identifier(f, "profile_id", p.ID[:])
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.samples.To = len(d.r.samples)
	// After the samples, which append to d.r.indexes too: the indexes of one list must be adjacent.
	if err := each(src, func(f field) error {
		if f.number == 11 {
			return named("attribute_indices", d.listIndexes(f, &p.attributes))
		}
		return nil
	}); err != nil {
		return err
	}
	return add(d, &d.r.Profiles, p)
}

// identifier copies an ID, which must have len(to) bytes or none.
func identifier(f field, name string, to []byte) error {
	var b []byte
	if err := f.bytes(&b); err != nil {
		return err
	}
	if len(b) != 0 && len(b) != len(to) {
		return corrupt("%s has %d bytes, not %d", name, len(b), len(to))
	}
	clear(to)
	copy(to, b)
	return nil
}

func (d *decoder) sample(src []byte) error {
	var s Sample
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return f.index(&s.stack)
		case 2:
			return named("attribute_indices", d.listIndexes(f, &s.attributes))
		case 3:
			return f.index(&s.link)
		case 4:
			return named("values", f.numbers(false, func(n uint64) error {
				s.values++
				return s.sumUp(int64(n))
			}))
		case 5:
			return named("timestamps_unix_nano", f.numbers(true, func(uint64) error {
				s.times++
				return nil
			}))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.times > 0 && s.values > 0 && s.times != s.values {
		return corrupt("%d values at %d timestamps", s.values, s.times)
	}
	return add(d, &d.r.samples, s)
}

// sumUp adds a value. A negative value makes the sum negative: pprof.Decode drops such a sample later.
func (s *Sample) sumUp(v int64) error {
	switch {
	case s.sum < 0 || v < 0:
		s.sum = -1
	case s.sum > math.MaxInt64-v:
		return corrupt("the sum of the values overflows")
	default:
		s.sum += v
	}
	return nil
}
