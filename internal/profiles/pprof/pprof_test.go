package pprof

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// formatPeer formats the peer's decoded profile as text.
func formatPeer(p *profile.Profile) string {
	var out strings.Builder
	for _, st := range p.SampleType {
		fmt.Fprintf(&out, "type %s %s\n", st.Type, st.Unit)
	}
	if p.PeriodType != nil {
		fmt.Fprintf(&out, "period %s %s %d\n", p.PeriodType.Type, p.PeriodType.Unit, p.Period)
	}
	fmt.Fprintf(&out, "time %d %d\n", p.TimeNanos, p.DurationNanos)
	for _, s := range p.Sample {
		for _, l := range s.Location {
			fmt.Fprintf(&out, "%x", l.Address)
			if l.Mapping != nil {
				fmt.Fprintf(&out, "@%s", l.Mapping.File)
			}
			for _, line := range l.Line {
				fmt.Fprintf(&out, "[%s %s %s:%d+%d]", line.Function.Name, line.Function.SystemName, line.Function.Filename, line.Line, line.Function.StartLine)
			}
		}
		var labels []string
		for k, values := range s.Label {
			for _, v := range values {
				labels = append(labels, k+"="+v)
			}
		}
		for k, values := range s.NumLabel {
			for _, v := range values {
				labels = append(labels, fmt.Sprint(k, "#", v))
			}
		}
		slices.Sort(labels)
		fmt.Fprintf(&out, " %v %v\n", s.Value, labels)
	}
	return out.String()
}

// formatOwn formats a Profile in the same way.
func formatOwn(p *Profile) string {
	var out strings.Builder
	for _, st := range p.SampleTypes {
		fmt.Fprintf(&out, "type %s %s\n", p.Text(st.Type), p.Text(st.Unit))
	}
	fmt.Fprintf(&out, "period %s %s %d\n", p.Text(p.PeriodType.Type), p.Text(p.PeriodType.Unit), p.Period)
	fmt.Fprintf(&out, "time %d %d\n", p.TimeNS, p.DurationNS)
	for i := range p.Samples {
		s := &p.Samples[i]
		for _, at := range p.Stack(s) {
			l := &p.Locations[at]
			fmt.Fprintf(&out, "%x", l.Address)
			if l.Mapping >= 0 {
				fmt.Fprintf(&out, "@%s", p.Text(p.Mappings[l.Mapping].File))
			}
			for _, line := range p.Lines[l.From:l.To] {
				f := p.Functions[line.Function]
				fmt.Fprintf(&out, "[%s %s %s:%d+%d]", p.Text(f.Name), p.Text(f.System), p.Text(f.File), line.Line, f.StartLine)
			}
		}
		var labels []string
		for _, l := range p.Labels(s) {
			if l.Text != 0 {
				labels = append(labels, fmt.Sprintf("%s=%s", p.Text(l.Key), p.Text(l.Text)))
			} else {
				labels = append(labels, fmt.Sprintf("%s#%d", p.Text(l.Key), l.Number))
			}
		}
		slices.Sort(labels)
		fmt.Fprintf(&out, " %v %v\n", p.Values(s), labels)
	}
	return out.String()
}

func random(r *rand.Rand) *profile.Profile {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7, TimeNanos: r.Int64(), DurationNanos: 10,
		Mapping: []*profile.Mapping{{ID: 1, Start: 1, Limit: 1 << 40, File: "/bin/x", BuildID: "id"}},
	}
	for i := range 1 + r.IntN(200) {
		fn := &profile.Function{ID: uint64(i + 1), Name: fmt.Sprint("f", i), SystemName: fmt.Sprint("s", i%3), Filename: "x.go", StartLine: int64(r.IntN(1000))}
		p.Function = append(p.Function, fn)
		l := &profile.Location{ID: uint64(i + 1), Address: r.Uint64() >> r.IntN(64), Mapping: p.Mapping[0]}
		for range r.IntN(3) {
			l.Line = append(l.Line, profile.Line{Function: p.Function[r.IntN(len(p.Function))], Line: int64(r.IntN(100_000))})
		}
		p.Location = append(p.Location, l)
	}
	for range r.IntN(50) {
		s := &profile.Sample{Value: []int64{int64(r.IntN(300)), r.Int64() >> r.IntN(63)}}
		for range r.IntN(40) {
			s.Location = append(s.Location, p.Location[r.IntN(len(p.Location))])
		}
		if r.IntN(3) == 0 {
			s.Label = map[string][]string{"k": {"v"}, "long": {strings.Repeat("x", 200)}}
			s.NumLabel = map[string][]int64{"n": {int64(1 + r.IntN(1000))}}
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

func encoded(t testing.TB, p *profile.Profile, zipped bool) []byte {
	t.Helper()
	var b bytes.Buffer
	write := p.WriteUncompressed
	if zipped {
		write = p.Write
	}
	must(t, write(&b))
	return b.Bytes()
}

func TestProfile_DecodeEqualsThePeer(t *testing.T) {
	var p Profile
	for seed := range uint64(200) {
		raw := encoded(t, random(rand.New(rand.NewPCG(seed, 1))), seed%2 == 0)
		want, err := profile.ParseData(raw)
		must(t, err)
		if err := p.Decode(raw, Limits{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got, want := formatOwn(&p), formatPeer(want); got != want {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, got, want)
		}
	}
}

func TestProfile_DecodeOfAHeapProfileEqualsThePeer(t *testing.T) {
	var b bytes.Buffer
	must(t, pprof.Lookup("heap").WriteTo(&b, 0))
	want, err := profile.ParseData(b.Bytes())
	must(t, err)
	var p Profile
	must(t, p.Decode(b.Bytes(), Limits{}))
	if got, want := formatOwn(&p), formatPeer(want); got != want {
		t.Fatalf("\n%s\nwant\n%s", got, want)
	}
}

func TestEncoder_ThePeerReadsTheProfile(t *testing.T) {
	e := NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1e7)
	e.Times(5, 6)
	leaf := e.Location(e.Function("leaf", "sys", "a.go", 3), 4)
	top := e.Location(e.Function("main", "main", "b.go", 1), 400)
	e.Sample([]uint64{leaf, top}, 1<<40)
	e.Sample(nil, 7)
	raw := e.Append([]byte("kept"))
	if !bytes.HasPrefix(raw, []byte("kept")) {
		t.Fatal("what was there is gone")
	}
	got, err := profile.ParseData(raw[4:])
	must(t, err)
	want := "type cpu nanoseconds\nperiod cpu nanoseconds 10000000\ntime 5 6\n0[leaf sys a.go:4+3]0[main main b.go:400+1] [1099511627776] []\n [7] []\n"
	if formatPeer(got) != want {
		t.Errorf("%s", formatPeer(got))
	}
}

// message appends a length-delimited field.
func message(field int, parts ...[]byte) []byte {
	return appendMessage(nil, field, bytes.Join(parts, nil))
}

func number(field int, v uint64) []byte { return appendNumber(nil, field, v) }

func TestProfile_DecodeErrorNamesTheOffset(t *testing.T) {
	texts := bytes.Join([][]byte{message(6), message(6, []byte("a"))}, nil)
	kind := message(1, number(1, 1), number(2, 1))
	fn := message(5, number(1, 1), number(2, 1))
	loc := message(4, number(1, 1), message(4, number(1, 1)))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 100 {
		if _, err := z.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, z.Close())
	for name, tt := range map[string]struct {
		raw  []byte
		want error
		text string
	}{
		"nothing":                 {nil, ErrCorrupt, "no string table"},
		"no types":                {texts, ErrCorrupt, "no sample types"},
		"a first text":            {join(message(6, []byte("x")), kind), ErrCorrupt, "first string"},
		"a type without text":     {join(message(6), kind), ErrCorrupt, "sample type 0"},
		"too many values":         {join(texts, kind, message(2, number(2, 1), number(2, 1))), ErrCorrupt, "sample 0 has 2 values"},
		"no values":               {join(texts, kind, message(2)), ErrCorrupt, "sample 0 has 0 values"},
		"a function twice":        {join(texts, kind, fn, fn), ErrCorrupt, "function 1 has id 1"},
		"a location twice":        {join(texts, kind, fn, loc, loc), ErrCorrupt, "location 1 has id 1"},
		"a location without id":   {join(texts, kind, message(4, number(3, 5))), ErrCorrupt, "location 0 has id 0"},
		"a name not there":        {join(texts, kind, message(5, number(1, 1), number(2, 77))), ErrCorrupt, "function 0 has no string"},
		"cut short":               {join(texts, kind)[:len(texts)+2], ErrCorrupt, "field 1"},
		"a number cut at the end": {join(texts, message(1, []byte{1 << 3, 0x80})), ErrCorrupt, "byte"},
		"an endless number":       {join(texts, bytes.Repeat([]byte{0xFF}, 20)), ErrCorrupt, "byte 5"},
		"a group":                 {join(texts, []byte{0x0B}), ErrCorrupt, "wire type 3"},
		"a sample as number":      {join(texts, kind, number(2, 5)), ErrCorrupt, "wire type"},
		"no gzip":                 {[]byte{0x1F, 0x8B, 1, 2, 3}, ErrCorrupt, "gzip"},
		"a bomb":                  {bomb.Bytes(), ErrLimit, "when decompressed"},
		"more strings":            {join(texts, bytes.Repeat(message(6), 100), kind), ErrLimit, "strings"},
		"more functions":          {join(texts, kind, bytes.Repeat(fn, 60)), ErrLimit, "functions"},
		"more samples":            {join(texts, kind, bytes.Repeat(message(2, number(2, 1)), 60)), ErrLimit, "samples"},
		"more types":              {join(texts, bytes.Repeat(kind, 60)), ErrLimit, "sample types"},
		"more locations":          {join(texts, kind, bytes.Repeat(message(4), 60)), ErrLimit, "locations"},
	} {
		var p Profile
		err := p.Decode(tt.raw, Limits{Bytes: 1 << 20, Strings: 100, Functions: 50, Locations: 50, Samples: 50, Depth: 50, SampleTypes: 50})
		if !errors.Is(err, tt.want) || !strings.Contains(fmt.Sprint(err), tt.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, tt.want, tt.text)
		}
	}
}

func TestProfile_DecodeCountsRepairs(t *testing.T) {
	texts := bytes.Join([][]byte{message(6), message(6, []byte("a")), message(6, []byte("b"))}, nil)
	kind := message(1, number(1, 1), number(2, 1))
	a, b := message(5, number(1, 1), number(2, 1)), message(5, number(1, 2), number(2, 2))
	line := func(function uint64) []byte { return message(4, number(1, function)) }
	at := func(id uint64, parts ...[]byte) []byte { return message(4, number(1, id), bytes.Join(parts, nil)) }
	sample := func(value uint64, locations ...uint64) []byte {
		var b []byte
		for _, l := range locations {
			b = append(b, number(1, l)...)
		}
		return message(2, b, number(2, value))
	}
	for name, tt := range map[string]struct {
		parts   [][]byte
		stacks  []string // function names, leaf first, and the value
		repairs Repairs
	}{
		"nothing to repair":    {[][]byte{a, at(1, line(1)), sample(5, 1)}, []string{"a 5"}, Repairs{}},
		"a negative value":     {[][]byte{a, at(1, line(1)), sample(1<<64-5, 1), sample(7, 1)}, []string{"a 7"}, Repairs{Negative: 1}},
		"a missing location":   {[][]byte{a, at(1, line(1)), sample(3, 1, 9), sample(7, 1)}, []string{"a 7"}, Repairs{Location: 1}},
		"no location at all":   {[][]byte{sample(3, 9), sample(7)}, []string{"7"}, Repairs{Location: 1}},
		"a missing function":   {[][]byte{a, at(1, line(1), line(8)), at(2, line(9)), sample(7, 1, 2)}, []string{"a ? 7"}, Repairs{Function: 2}},
		"a missing mapping":    {[][]byte{a, message(4, number(1, 1), number(2, 4), line(1)), sample(7, 1)}, []string{"a 7"}, Repairs{Mapping: 1}},
		"functions without id": {[][]byte{message(5, number(2, 1)), message(5, number(2, 2)), at(1, line(0)), at(2, line(0)), sample(7, 2, 1)}, []string{"b a 7"}, Repairs{Function: 2}},
		"a deep stack":         {[][]byte{a, b, at(1, line(1)), at(2, line(2)), sample(7, 1, 1, 1, 1, 2, 1), sample(8, 1, 2, 1)}, []string{"a b a 7", "a b a 8"}, Repairs{Depth: 1}},
		"a very deep stack":    {[][]byte{a, b, at(1, line(1)), at(2, line(2)), sample(7, append(slices.Repeat([]uint64{1}, 99), 2)...)}, []string{"a a b 7"}, Repairs{Depth: 1}},
		"inlined frames":       {[][]byte{a, b, at(1, line(1), line(2)), at(2, line(2)), sample(7, 1, 1), sample(8, 2, 1)}, []string{"a b 7", "b a b 8"}, Repairs{Depth: 1}},
		"many inlined frames":  {[][]byte{a, b, at(1, line(1), line(1), line(1), line(2)), sample(7, 1)}, []string{"a a b 7"}, Repairs{}},
	} {
		var p Profile
		if err := p.Decode(bytes.Join(append([][]byte{texts, kind}, tt.parts...), nil), Limits{Depth: 3}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var stacks []string
		for i := range p.Samples {
			s := &p.Samples[i]
			var names []string
			for _, l := range p.Stack(s) {
				for _, line := range p.Lines[p.Locations[l].From:p.Locations[l].To] {
					names = append(names, string(p.Text(p.Functions[line.Function].Name)))
				}
				if p.Locations[l].From == p.Locations[l].To {
					names = append(names, "?")
				}
			}
			stacks = append(stacks, strings.Join(append(names, fmt.Sprint(p.Values(s)[0])), " "))
		}
		if !slices.Equal(stacks, tt.stacks) || p.Repairs != tt.repairs {
			t.Errorf("%s: %q, %+v, want %q, %+v", name, stacks, p.Repairs, tt.stacks, tt.repairs)
		}
		for _, l := range p.Stacks() {
			if int(l) >= len(p.Locations) {
				t.Errorf("%s: a stack has location %d of %d", name, l, len(p.Locations))
			}
		}
	}
}

func TestProfile_NodesCountsTheTreeOfStacks(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, samples := range []int{10, 3000} {
		e := NewEncoder()
		e.SampleType("a", "b")
		var locations []uint64
		for i := range 4 {
			locations = append(locations, e.Location(e.Function(fmt.Sprint(i), "", "", 0), 1))
		}
		tree, frames := map[string]bool{}, 0
		for range samples {
			stack := make([]uint64, 1+r.IntN(200))
			var path strings.Builder
			for i := len(stack) - 1; i >= 0; i-- {
				stack[i] = locations[min(r.IntN(40), 3)]
				fmt.Fprint(&path, stack[i])
				tree[path.String()] = true
			}
			frames += len(stack)
			e.Sample(stack, 1)
		}
		raw := e.Append(nil)
		var p Profile
		must(t, p.Decode(raw, Limits{}))
		want := len(tree)
		if frames <= exactNodesFrames {
			want = frames // up to exactNodesFrames
		}
		if p.Nodes() != want {
			t.Errorf("%d samples: %d nodes, want %d", samples, p.Nodes(), want)
		}
		if err := p.Decode(raw, Limits{Nodes: len(tree)}); err != nil {
			t.Errorf("at the limit: %v", err)
		}
		if err := p.Decode(raw, Limits{Nodes: len(tree) - 1}); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "nodes") {
			t.Errorf("one past the limit: %v", err)
		}
	}
}

func TestProfile_AppendRenamedChangesNamesOnly(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	for range 50 {
		peer := random(r)
		var p, again Profile
		must(t, p.Decode(encoded(t, peer, r.IntN(2) == 0), Limits{}))
		renamed := map[string]bool{}
		out, err := p.AppendRenamed([]byte("kept"), func(dst []byte, f *Function) []byte {
			if name := p.Text(f.Name); len(name)%2 == 0 {
				renamed[string(name)] = true
				return append(append(dst, name...), "()"...)
			}
			return dst
		})
		if err != nil || !bytes.HasPrefix(out, []byte("kept")) {
			t.Fatalf("%.10q, %v", out, err)
		}
		must(t, again.Decode(out[len("kept"):], Limits{}))
		for _, f := range peer.Function {
			if renamed[f.Name] {
				f.Name += "()"
			}
		}
		if got, want := formatOwn(&again), formatPeer(peer); got != want {
			t.Fatalf("%s\nwant\n%s", got, want)
		}
		if read, err := profile.ParseUncompressed(out[len("kept"):]); err != nil || formatPeer(read) != formatPeer(peer) {
			t.Fatalf("the peer reads another profile: %v", err)
		}
	}
}

func TestProfile_AppendRenamedUpToTheLimitOfBytes(t *testing.T) {
	e := NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Sample([]uint64{e.Location(e.Function("f", "", "", 0), 1)}, 1)
	raw := e.Append(nil)
	rename := func(dst []byte, _ *Function) []byte { return append(dst, "1234567890"...) }
	const added = 2 + 2 + 10 // the new number of the name, and the name
	for limit, want := range map[int]error{len(raw) + added: nil, len(raw) + added - 1: ErrLimit} {
		var p Profile
		must(t, p.Decode(raw, Limits{Bytes: limit}))
		if out, err := p.AppendRenamed(nil, rename); !errors.Is(err, want) || (err == nil && len(out) != limit) {
			t.Errorf("at most %d bytes: %d bytes, %v", limit, len(out), err)
		}
	}
}

func TestProfile_DecodeDoesNotAllocate(t *testing.T) {
	raw := encoded(t, random(rand.New(rand.NewPCG(1, 1))), true)
	var p Profile
	if n := testing.AllocsPerRun(50, func() {
		must(t, p.Decode(raw, Limits{}))
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(encoded(f, random(rand.New(rand.NewPCG(seed, 1))), false))
	}
	f.Add(encoded(f, random(rand.New(rand.NewPCG(9, 1))), true))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p Profile
		err := p.Decode(raw, Limits{Bytes: 1 << 20})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLimit) {
				t.Fatalf("%v", err)
			}
			return
		}
		own := formatOwn(&p) // panics on an invalid reference
		if p.Repairs != (Repairs{}) {
			return
		}
		peer, err := profile.ParseData(raw)
		if err != nil {
			return // the peer has further checks
		}
		if peer.PeriodType == nil || len(peer.SampleType) == 0 || strings.Contains(own, "#") {
			return // the peer drops numbers of 0
		}
		for _, s := range peer.Sample {
			if len(s.Label) > 0 {
				return // and empty labels
			}
		}
		if want := formatPeer(peer); own != want {
			t.Fatalf("%s\nwant\n%s", own, want)
		}
	})
}

// must ends a test that cannot go on after an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
