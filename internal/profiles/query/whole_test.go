package query

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	googlepprof "github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// program has locations with lines, inlined functions and mappings, and some without functions.
func program(r *rand.Rand) *googlepprof.Profile {
	p := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &googlepprof.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
	}
	for i := range 3 {
		p.Mapping = append(p.Mapping, &googlepprof.Mapping{ID: uint64(i + 1), Start: uint64(i+1) << 20, Limit: uint64(i+2) << 20, File: fmt.Sprintf("lib%d.so", i)})
	}
	for i := range 1 + r.IntN(60) {
		f := &googlepprof.Function{ID: uint64(i + 1), Name: fmt.Sprintf("f%d", r.IntN(40)), Filename: fmt.Sprintf("%d.go", r.IntN(3)), StartLine: int64(r.IntN(3))}
		if f.SystemName = f.Name; r.IntN(3) == 0 {
			f.SystemName = fmt.Sprintf("_Z%d", r.IntN(4))
		}
		if r.IntN(20) == 0 {
			f.Name = ""
		}
		p.Function = append(p.Function, f)
	}
	for i := range 1 + r.IntN(80) {
		m := p.Mapping[r.IntN(3)]
		l := &googlepprof.Location{ID: uint64(i + 1), Mapping: m, Address: m.Start + uint64(r.IntN(50))}
		if r.IntN(10) > 0 {
			for range 1 + r.IntN(4)/2 {
				l.Line = append(l.Line, googlepprof.Line{Function: p.Function[r.IntN(len(p.Function))], Line: int64(r.IntN(4)) - 1})
			}
		}
		p.Location = append(p.Location, l)
	}
	return p
}

// run returns a profile of the program.
func run(r *rand.Rand, of *googlepprof.Profile) []byte {
	p := &googlepprof.Profile{
		SampleType: of.SampleType, PeriodType: of.PeriodType, Period: of.Period, Mapping: of.Mapping, Function: of.Function, Location: of.Location,
	}
	for range r.IntN(1 + []int{3, 30, 400}[r.IntN(3)]) {
		s := &googlepprof.Sample{Value: []int64{int64(r.IntN(3)), int64(r.IntN(4)) * 1e7}}
		depth, at := r.IntN(25), r.IntN(len(p.Location))
		for range depth { // mostly chains that many stacks share
			if r.IntN(6) == 0 {
				at = r.IntN(len(p.Location))
			}
			s.Location = append(s.Location, p.Location[at])
			at = (at + 1) % len(p.Location)
		}
		p.Sample = append(p.Sample, s)
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// wholeStacks returns the sums of one sample type by stack, with all that is known of each frame.
func wholeStacks(t *testing.T, raw []byte, at int, into map[string]int64) {
	t.Helper()
	p, err := googlepprof.ParseData(raw)
	must(t, err)
	for _, s := range p.Sample {
		var stack []string
		for _, l := range s.Location {
			if len(l.Line) == 0 {
				stack = append(stack, fmt.Sprintf("0x%x 0x%x %s:0+0", l.Address, l.Address, l.Mapping.File))
			}
			for _, line := range l.Line {
				f := line.Function
				name := f.Name
				if name == "" {
					name = f.SystemName
				}
				stack = append(stack, fmt.Sprintf("%s %s %s:%d+%d", name, f.SystemName, f.Filename, f.StartLine, max(line.Line, 0)))
			}
		}
		if v := s.Value[at]; v != 0 {
			into[strings.Join(stack, " < ")] += v
		}
	}
}

// Stacks with lines, inlined functions, system names and addresses equal those of the pushed profiles, wherever they are: in heads, blocks,
// compacted blocks, and after the write-ahead log was replayed, also if the log exceeds the memory of heads.
func TestMergePprof_EqualsTheSumOfWholeStacks(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 21))
		dir, programs := t.TempDir(), []*googlepprof.Profile{program(r), program(r), program(r)}
		pushed := map[string][][]byte{}
		open := func(o store.Options) *store.Store {
			o.Dir, o.Retention = dir, -1
			s, err := store.New(o, quiet, nil)
			if err == nil {
				err = s.Open()
			}
			must(t, err)
			return s
		}
		s, n := open(store.Options{}), 0
		for step := range 14 {
			did := "append"
			switch r.IntN(6) {
			case 0:
				if did = "flush"; s.Flush(ctx) != nil {
					t.Fatal(did)
				}
			case 1:
				if did = "compact"; s.Compact(ctx) != nil {
					t.Fatal(did)
				}
			case 2:
				did = "reopen"
				must(t, s.Close())
				o := store.Options{}
				if r.IntN(2) == 0 {
					o.HeadBytes = 64 << 10
				}
				s = open(o)
			default:
				for range 1 + r.IntN(4) {
					service := string(rune('a' + r.IntN(4)))
					raw := run(r, programs[r.IntN(3)])
					n++
					p := profiles.RawProfile{Labels: cpuLabels(service), ID: profiles.ID{byte(n), byte(n >> 8), 1}, TimeNS: (epochMS + int64(r.IntN(60_000))) * 1e6, Raw: raw}
					must(t, s.Append(ctx, "t", []profiles.RawProfile{p}))
					pushed[service] = append(pushed[service], raw)
				}
			}
			for at, typ := range []profiles.Type{{Name: "process_cpu", SampleType: "samples", SampleUnit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds"}, cpuType} {
				for _, of := range []string{".*", "a", "b|d"} {
					m, want, got := labels.MustNewMatcher(labels.MatchRegexp, "service_name", of), map[string]int64{}, map[string]int64{}
					for service, all := range pushed {
						if m.Matches(service) {
							for _, raw := range all {
								wholeStacks(t, raw, at, want)
							}
						}
					}
					raw, _, err := New(Options{}, s).MergePprof(ctx, &profiles.MergeRequest{Tenant: "t", Type: typ, StartMS: epochMS, EndMS: epochMS + 60_000, Matchers: []*labels.Matcher{m}})
					must(t, err)
					wholeStacks(t, raw, 0, got)
					if !maps.Equal(got, want) {
						for k, v := range want {
							if got[k] != v {
								t.Logf("%q: %d, want %d", k, got[k], v)
							}
						}
						t.Fatalf("seed %d step %d after %s, %s of %s: %d stacks, want %d", seed, step, did, typ.SampleType, of, len(got), len(want))
					}
				}
			}
		}
		must(t, s.Close())
	}
}
