package otlp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/protobuf/encoding/protowire"
)

// sent is a request as the collector's own library builds it: a resource with a service, and
// one CPU profile of two samples, main;work of a span and main.
func sent(t testing.TB) pprofile.Profiles {
	t.Helper()
	all := pprofile.NewProfiles()
	dict := all.Dictionary()
	dict.StringTable().FromRaw([]string{"", "samples", "count", "cpu", "nanoseconds", "main", "work", "main.go", "thread.name", "worker-1", "libc.so"})
	dict.MappingTable().AppendEmpty()
	dict.MappingTable().AppendEmpty().SetFilenameStrindex(10)
	dict.FunctionTable().AppendEmpty()
	for name := range int32(2) {
		f := dict.FunctionTable().AppendEmpty()
		f.SetNameStrindex(5 + name)
		f.SetFilenameStrindex(7)
		f.SetStartLine(int64(10 * (name + 1)))
	}
	dict.LocationTable().AppendEmpty()
	for function := range int32(2) {
		line := dict.LocationTable().AppendEmpty().Lines().AppendEmpty()
		line.SetFunctionIndex(function + 1)
		line.SetLine(int64(12 + function))
	}
	native := dict.LocationTable().AppendEmpty()
	native.SetMappingIndex(1)
	native.SetAddress(0x1234)
	dict.LinkTable().AppendEmpty()
	link := dict.LinkTable().AppendEmpty()
	link.SetTraceID([16]byte{1, 2, 3})
	link.SetSpanID([8]byte{4, 5})
	dict.AttributeTable().AppendEmpty()
	thread := dict.AttributeTable().AppendEmpty()
	thread.SetKeyStrindex(8)
	thread.Value().SetStr("worker-1")
	dict.StackTable().AppendEmpty()
	dict.StackTable().AppendEmpty().LocationIndices().FromRaw([]int32{3, 2, 1})
	dict.StackTable().AppendEmpty().LocationIndices().FromRaw([]int32{1})

	resource := all.ResourceProfiles().AppendEmpty()
	resource.Resource().Attributes().PutStr("service.name", "shop")
	resource.Resource().Attributes().PutInt("process.pid", 7)
	scope := resource.ScopeProfiles().AppendEmpty()
	scope.Scope().Attributes().PutStr("kind", "test")
	p := scope.Profiles().AppendEmpty()
	p.SampleType().SetTypeStrindex(1)
	p.SampleType().SetUnitStrindex(2)
	p.PeriodType().SetTypeStrindex(3)
	p.PeriodType().SetUnitStrindex(4)
	p.SetPeriod(50_000_000)
	p.SetTime(1_800_000_000_000_000_000)
	p.SetDurationNano(10_000_000_000)
	p.SetProfileID([16]byte{9, 9})
	one := p.Samples().AppendEmpty()
	one.SetStackIndex(1)
	one.SetLinkIndex(1)
	one.AttributeIndices().FromRaw([]int32{1})
	one.Values().FromRaw([]int64{2, 3})
	two := p.Samples().AppendEmpty()
	two.SetStackIndex(2)
	two.TimestampsUnixNano().FromRaw([]uint64{1, 2, 3, 4})
	return all
}

// describe returns the content of a request as text.
func describe(t *testing.T, r *Request) string {
	t.Helper()
	var b strings.Builder
	write := func(key []byte, v Value) { fmt.Fprintf(&b, " %s=%s/%d", key, v.Text, v.Bits) }
	for i := range r.Profiles {
		p := &r.Profiles[i]
		fmt.Fprintf(&b, "%s %d+%d id %x period %d", p.Place(), p.TimeNS, p.DurationNS, p.ID[:2], p.Period)
		for _, n := range []int32{p.Type.Type, p.Type.Unit, p.PeriodType.Type, p.PeriodType.Unit} {
			text, err := r.Text(n)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, " %s", text)
		}
		if err := r.Attributes(p, write); err != nil {
			t.Fatal(err)
		}
		for k := range r.Samples(p) {
			s := &r.Samples(p)[k]
			fmt.Fprintf(&b, "\n%d", s.Value())
			if err := r.SampleAttributes(s, write); err != nil {
				t.Fatal(err)
			}
			link, ok, err := r.Link(s)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				fmt.Fprintf(&b, " span %x of %x", link.Span[:2], link.Trace[:3])
			}
			stack, err := r.Stack(s)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range stack {
				l := r.Location(n)
				for at := l.Lines.From; at < l.Lines.To; at++ {
					name, _, file, start := r.Function(r.Line(at).Function)
					fmt.Fprintf(&b, " %s@%s:%d+%d", name, file, r.Line(at).Line, start)
				}
				if l.Lines.From == l.Lines.To {
					fmt.Fprintf(&b, " %s+%#x", r.MappingFile(l.Mapping), l.Address)
				}
			}
		}
	}
	return b.String()
}

const described = `resource_profiles[0].scope_profiles[0].profiles[0] 1800000000000000000+10000000000 id 0909 period 50000000 samples count cpu nanoseconds service.name=shop/0 process.pid=/7 kind=test/0
5 thread.name=worker-1/0 span 0405 of 010203 libc.so+0x1234 work@main.go:13+20 main@main.go:12+10
4 main@main.go:12+10`

func TestDecode_ReadsWhatTheLibraryOfTheCollectorSends(t *testing.T) {
	inline, err := pprofileotlp.NewExportRequestFromProfiles(sent(t)).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	text, err := pprofileotlp.NewExportRequestFromProfiles(sent(t)).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	fromJSON, err := FromJSON(text, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	marshaler := &pprofile.ProtoMarshaler{}
	referenced, err := marshaler.MarshalProfiles(sent(t)) // keys and texts of attributes are in the dictionary
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{"inline": inline, "JSON": fromJSON, "references": referenced} {
		r, err := Decode(raw, Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := describe(t, r); got != described {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, described)
		}
	}
}

func TestDecode_AnInvalidReferenceNamesItsPlace(t *testing.T) {
	for want, change := range map[string]func(pprofile.Profiles){
		"dictionary: stack_table[2]: invalid OTLP profiles: location 9, but location_table has 4 elements": func(p pprofile.Profiles) {
			p.Dictionary().StackTable().At(2).LocationIndices().FromRaw([]int32{9})
		},
		"dictionary: location_table[2]: invalid OTLP profiles: function -1, but function_table has 3 elements": func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(2).Lines().At(0).SetFunctionIndex(-4)
		},
		"dictionary: function_table[1]: invalid OTLP profiles: string 11, but string_table has 11 elements": func(p pprofile.Profiles) {
			p.Dictionary().FunctionTable().At(1).SetNameStrindex(11)
		},
		"resource_profiles[0]: scope_profiles[0]: profiles[0]: samples[0]: invalid OTLP profiles: 2 values at 1 timestamps": func(p pprofile.Profiles) {
			p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0).TimestampsUnixNano().FromRaw([]uint64{1})
		},
	} {
		all := sent(t)
		change(all)
		raw, err := pprofileotlp.NewExportRequestFromProfiles(all).MarshalProto()
		if err != nil {
			t.Fatal(err)
		}
		if _, err = Decode(raw, Limits{}); !errors.Is(err, ErrCorrupt) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestDecode_BombsEndAtTheLimit(t *testing.T) {
	// An empty sample takes two bytes on the wire.
	var profile []byte
	for range 100_000 {
		profile = protowire.AppendBytes(protowire.AppendTag(profile, 2, protowire.BytesType), nil)
	}
	scope := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), profile)
	resource := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), scope)
	raw := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), resource)
	if _, err := Decode(raw, Limits{}); err != nil {
		t.Errorf("below the limit: %v", err)
	}
	if _, err := Decode(raw, Limits{Bytes: 1 << 20}); !errors.Is(err, ErrLimit) {
		t.Errorf("samples: %v", err)
	}
	scope = nil
	for range 11 {
		scope = protowire.AppendBytes(protowire.AppendTag(scope, 2, protowire.BytesType), nil)
	}
	resource = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), scope)
	raw = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), resource)
	if _, err := Decode(raw, Limits{Profiles: 11}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := Decode(raw, Limits{Profiles: 10}); !errors.Is(err, ErrLimit) {
		t.Errorf("profiles: %v", err)
	}
	deep := []byte(`{"resourceProfiles":[{"resource":{"attributes":[{"key":"a","value":` + strings.Repeat(`{"arrayValue":{"values":[`, 1_000_000))
	if _, err := FromJSON(deep, Limits{Bytes: 1 << 30}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("deep JSON: %v", err)
	}
	if _, err := FromJSON([]byte(`{"resourceProfiles":[`+strings.Repeat("{},", 10_000)+`{}]}`), Limits{Bytes: 1 << 20}); !errors.Is(err, ErrLimit) {
		t.Errorf("wide JSON: %v", err)
	}
	if _, err := FromJSON([]byte(`{"resourceProfiles":`), Limits{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("cut JSON: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	raw, err := pprofileotlp.NewExportRequestFromProfiles(sent(f)).MarshalProto()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Fuzz(func(t *testing.T, src []byte) {
		r, err := Decode(src, Limits{Bytes: 1 << 20, Profiles: 100})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLimit) {
				t.Fatal(err)
			}
			return
		}
		for i := range r.Profiles {
			p := &r.Profiles[i]
			_ = r.Attributes(p, func([]byte, Value) {})
			for k := range r.Samples(p) {
				s := &r.Samples(p)[k]
				_ = r.SampleAttributes(s, func([]byte, Value) {})
				_, _, _ = r.Link(s)
				stack, err := r.Stack(s)
				if err != nil {
					continue
				}
				for _, n := range stack {
					l := r.Location(n)
					r.MappingFile(l.Mapping)
					for at := l.Lines.From; at < l.Lines.To; at++ {
						r.Function(r.Line(at).Function)
					}
				}
			}
		}
	})
}
