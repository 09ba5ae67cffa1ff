package query

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	googlepprof "github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// naiveRow is a row without any encoding: labels as a map, stacks as strings, values summed
// one by one.
type naiveRow struct {
	typ    profiles.Type
	labels map[string]string // as pushed, and labels of the samples
	id     profiles.ID
	timeNS int64
	stacks map[string]int64 // names from the root, joined by ;

	spans, traces map[string]map[string]int64 // sums of stacks, by span and by trace
}

func (r *naiveRow) total() (sum int64) {
	for _, v := range r.stacks {
		sum += v
	}
	return sum
}

// all returns the labels and the labels of the type.
func (r *naiveRow) all() map[string]string {
	m := maps.Clone(r.labels)
	for k, v := range map[string]string{
		profiles.LabelType: r.typ.String(), profiles.LabelSampleType: r.typ.SampleType, profiles.LabelSampleUnit: r.typ.SampleUnit,
		profiles.LabelPeriodType: r.typ.PeriodType, profiles.LabelPeriodUnit: r.typ.PeriodUnit,
	} {
		if v != "" {
			m[k] = v
		}
	}
	return m
}

func labelMap(t testing.TB, set []byte) map[string]string {
	m := map[string]string{}
	for len(set) > 0 {
		name, value, rest, err := labelenc.Next(set)
		must(t, err)
		m[string(name)], set = string(value), rest
	}
	return m
}

func encodeMap(m map[string]string) []byte {
	var set []byte
	for _, name := range slices.Sorted(maps.Keys(m)) {
		set = labelenc.AppendLabel(set, name, m[name])
	}
	return set
}

// naiveRows decodes pushed profiles with google/pprof. Duplicate rows and rows without
// samples are skipped.
func naiveRows(t testing.TB, pushed []profiles.RawProfile) []*naiveRow {
	var rows []*naiveRow
	seen := map[string]bool{}
	for _, p := range pushed {
		prof, err := googlepprof.ParseData(p.Raw)
		must(t, err)
		series := labelMap(t, p.Labels)
		for i, st := range prof.SampleType {
			typ := profiles.Type{Name: series["__name__"], SampleType: st.Type, SampleUnit: st.Unit, PeriodType: prof.PeriodType.Type, PeriodUnit: prof.PeriodType.Unit}
			parts := map[string]*naiveRow{}
			for _, sample := range prof.Sample {
				own := maps.Clone(series)
				for name, values := range sample.Label {
					if _, ok := own[name]; !ok && name != "span_id" && name != "trace_id" {
						own[name] = values[0]
					}
				}
				key := string(encodeMap(own))
				r := parts[key]
				if r == nil {
					r = &naiveRow{typ: typ, labels: own, id: p.ID, timeNS: p.TimeNS, stacks: map[string]int64{}, spans: map[string]map[string]int64{}, traces: map[string]map[string]int64{}}
					parts[key] = r
				}
				var names []string
				for _, loc := range slices.Backward(sample.Location) {
					for _, line := range slices.Backward(loc.Line) {
						names = append(names, line.Function.Name)
					}
				}
				stack := strings.Join(names, ";")
				r.stacks[stack] += sample.Value[i]
				for name, by := range map[string]map[string]map[string]int64{"span_id": r.spans, "trace_id": r.traces} {
					for _, id := range sample.Label[name] {
						if by[id] == nil {
							by[id] = map[string]int64{}
						}
						by[id][stack] += sample.Value[i]
					}
				}
			}
			for _, r := range parts {
				maps.DeleteFunc(r.stacks, func(_ string, value int64) bool { return value == 0 })
				if len(r.stacks) == 0 {
					continue // no samples of this type: no row
				}
				key := fmt.Sprintf("%x %d %s %q", r.id, r.timeNS, r.typ, encodeMap(r.labels))
				if !seen[key] {
					seen[key] = true
					rows = append(rows, r)
				}
			}
		}
	}
	return rows
}

func (r *naiveRow) matches(typ profiles.Type, matchers []*labels.Matcher) bool {
	all := r.all()
	return r.typ == typ && !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(all[m.Name]) })
}

// below returns the sum of the stacks that begin with a call site, and whether there are such stacks.
func (r *naiveRow) below(site []string) (sum int64, any bool) {
	if len(site) == 0 {
		return r.total(), true
	}
	prefix := strings.Join(site, ";")
	for stack, v := range r.stacks {
		if v != 0 && (stack == prefix || strings.HasPrefix(stack, prefix+";")) {
			sum, any = sum+v, true
		}
	}
	return sum, any
}

type naiveCandidate struct {
	id     profiles.ID
	timeNS int64
	value  int64
	labels map[string]string
}

// naiveSelect implements SelectSeries row by row, as the API is defined.
func naiveSelect(rows []*naiveRow, req *profiles.SeriesRequest) string {
	type cell struct {
		sum  int64
		rows int
		from map[string]*naiveCandidate
	}
	groups := map[string]map[int64]*cell{}
	for _, r := range rows {
		if !r.matches(req.Type, req.Matchers) {
			continue
		}
		value, any := r.below(req.CallSite)
		if !any {
			continue
		}
		all, group := r.all(), map[string]string{}
		for _, name := range req.GroupBy {
			if all[name] != "" {
				group[name] = all[name]
			}
		}
		for label := req.StartMS; label <= req.EndMS; label += req.StepMS {
			if ms := r.timeNS / 1e6; ms <= label-req.StepMS || ms > label {
				continue
			}
			key := string(encodeMap(group))
			if groups[key] == nil {
				groups[key] = map[int64]*cell{}
			}
			c := groups[key][label]
			if c == nil {
				c = &cell{from: map[string]*naiveCandidate{}}
				groups[key][label] = c
			}
			c.sum += value
			c.rows++
			left := maps.Clone(r.labels)
			for _, name := range req.GroupBy {
				delete(left, name)
			}
			who := fmt.Sprintf("%x %d", r.id, r.timeNS)
			if known := c.from[who]; known == nil {
				c.from[who] = &naiveCandidate{r.id, r.timeNS, value, left}
			} else {
				known.value += value
				maps.DeleteFunc(known.labels, func(k, v string) bool { return left[k] != v })
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b string) int { return labelenc.Compare([]byte(a), []byte(b)) })
	if req.Limit > 0 && len(keys) > req.Limit {
		total := func(key string) (sum int64) {
			for _, c := range groups[key] {
				sum += c.sum
			}
			return sum
		}
		slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(total(b), total(a)) })
		keys = keys[:req.Limit]
		slices.SortFunc(keys, func(a, b string) int { return labelenc.Compare([]byte(a), []byte(b)) })
	}
	var out strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&out, "%q\n", key)
		for _, label := range slices.Sorted(maps.Keys(groups[key])) {
			c := groups[key][label]
			value := float64(c.sum)
			if req.Average {
				value /= float64(c.rows)
			}
			fmt.Fprintf(&out, "  %d %v", label, value)
			if req.Exemplars {
				best := slices.MinFunc(slices.Collect(maps.Values(c.from)), func(a, b *naiveCandidate) int {
					return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(a.timeNS, b.timeNS), bytes.Compare(a.id[:], b.id[:]))
				})
				fmt.Fprintf(&out, " {%s %d %d %q}", best.id, best.timeNS, best.value, encodeMap(best.labels))
			}
			out.WriteByte('\n')
		}
	}
	return out.String()
}

func selected(t testing.TB, e *Engine, req *profiles.SeriesRequest) string {
	t.Helper()
	result, err := e.SelectSeries(context.Background(), req)
	must(t, err)
	defer result.Close()
	if len(result.Warnings) > 0 {
		t.Fatal(result.Warnings)
	}
	return spell(result)
}

func spell(result *profiles.SeriesResult) string {
	var out strings.Builder
	for _, s := range result.Series {
		fmt.Fprintf(&out, "%q\n", s.Labels)
		for i, p := range s.Points {
			fmt.Fprintf(&out, "  %d %v", p.TimeMS, p.Value)
			if len(s.Exemplars) > 0 {
				x := &s.Exemplars[i]
				fmt.Fprintf(&out, " {%s %d %d %q}", x.ID, x.TimeNS, x.Value, exemplarLabels(result, x))
			}
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// naiveMerge sums stacks.
func naiveMerge(rows []*naiveRow, req *profiles.MergeRequest) map[string]int64 {
	sums := map[string]int64{}
	for _, r := range rows {
		if !r.matches(req.Type, req.Matchers) || r.timeNS < req.StartMS*1e6 || r.timeNS > req.EndMS*1e6+999_999 {
			continue
		}
		if len(req.IDs) > 0 && !slices.Contains(req.IDs, r.id) {
			continue
		}
		prefix := strings.Join(req.CallSite, ";")
		for stack, v := range r.stacks {
			if v != 0 && (prefix == "" || stack == prefix || strings.HasPrefix(stack, prefix+";")) {
				sums[stack] += v
			}
		}
	}
	return sums
}

// stacksOf converts a flame graph back to stacks, and checks its sums.
func stacksOf(t testing.TB, g *profiles.FlameGraph) map[string]int64 {
	t.Helper()
	type placed struct {
		path     string
		from, to int64
	}
	sums := map[string]int64{}
	above := []placed{{"", 0, g.Total}}
	for depth, level := range g.Levels {
		var here []placed
		var x int64
		at := 0
		for i := 0; i < len(level); i += 4 {
			x += level[i]
			for x >= above[at].to && at < len(above)-1 {
				at++
			}
			path := g.Names[level[i+3]]
			if depth == 0 {
				path = ""
			} else if above[at].path != "" {
				path = above[at].path + ";" + path
			}
			if x < above[at].from || x+level[i+1] > above[at].to {
				t.Fatalf("node %s is not below its parent", path)
			}
			here = append(here, placed{path, x, x + level[i+1]})
			if level[i+2] > 0 {
				sums[path] += level[i+2]
			}
			x += level[i+1]
		}
		above = here
	}
	return sums
}

func stacksOfPprof(t testing.TB, raw []byte) map[string]int64 {
	t.Helper()
	prof, err := googlepprof.ParseData(raw)
	must(t, err)
	sums := map[string]int64{}
	for _, s := range prof.Sample {
		var names []string
		for _, loc := range slices.Backward(s.Location) {
			names = append(names, loc.Line[0].Function.Name)
		}
		sums[strings.Join(names, ";")] += s.Value[0]
	}
	return sums
}

const epochMS = 1_700_000_000_000

// randomPush returns a push of a few profiles with few services, timestamps, values and IDs,
// so that ties, splits and duplicates are common.
func randomPush(r *rand.Rand, known []profiles.RawProfile) []profiles.RawProfile {
	var pushed []profiles.RawProfile
	for range 1 + r.IntN(3) {
		p := profiles.RawProfile{TimeNS: (epochMS+int64(r.IntN(60))*500)*1e6 + int64(r.IntN(2))*int64(r.IntN(1_000_000))}
		r2 := r.Uint64()
		p.ID = profiles.ID{byte(r2), byte(r2 >> 8), 1}
		if len(known) > 0 && r.IntN(4) == 0 { // rows of a profile that was pushed before, or the same rows again
			old := known[r.IntN(len(known))]
			p.ID, p.TimeNS = old.ID, old.TimeNS
			if r.IntN(3) == 0 {
				pushed = append(pushed, old)
				continue
			}
		}
		set := map[string]string{"__name__": "process_cpu", "service_name": string(rune('a' + r.IntN(3)))}
		if r.IntN(4) == 0 {
			set["__name__"] = "wall"
		}
		if r.IntN(2) == 0 {
			set["pod"] = string(rune('x' + r.IntN(2)))
		}
		p.Labels, p.Raw = encodeMap(set), randomProfile(r)
		pushed = append(pushed, p)
	}
	return pushed
}

func randomProfile(r *rand.Rand) []byte {
	prof := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &googlepprof.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
	}
	for i := range 6 {
		fn := &googlepprof.Function{ID: uint64(i + 1), Name: fmt.Sprintf("f%d", i), Filename: "x.go"}
		prof.Function = append(prof.Function, fn)
		loc := &googlepprof.Location{ID: uint64(i + 1), Line: []googlepprof.Line{{Function: fn, Line: int64(r.IntN(3))}}}
		if i > 3 {
			loc.Line = append(loc.Line, googlepprof.Line{Function: prof.Function[0], Line: 7})
		}
		prof.Location = append(prof.Location, loc)
	}
	split := r.IntN(3) == 0
	for range r.IntN(5) {
		s := &googlepprof.Sample{Value: []int64{int64(r.IntN(3)), int64(r.IntN(4)) * 1e7}}
		for range r.IntN(5) {
			s.Location = append(s.Location, prof.Location[r.IntN(6)])
		}
		if split && r.IntN(2) == 0 {
			s.Label = map[string][]string{"thread": {string(rune('0' + r.IntN(2)))}, "span_id": {fmt.Sprintf("%016x", 1+r.IntN(4))}, "trace_id": {fmt.Sprintf("%032x", 1+r.IntN(2))}}
		}
		prof.Sample = append(prof.Sample, s)
	}
	var out bytes.Buffer
	if err := prof.Write(&out); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func randomSelect(r *rand.Rand) *profiles.SeriesRequest {
	steps := []int64{1, 7, 500, 1000, 3333, 15_000, 100_000}
	req := &profiles.SeriesRequest{
		Tenant: "t", Type: cpuType, StepMS: steps[r.IntN(len(steps))], StartMS: epochMS + int64(r.IntN(20_000)) - 5000,
		Exemplars: r.IntN(4) > 0, Average: r.IntN(4) == 0,
	}
	req.EndMS = req.StartMS + int64(r.IntN(40_000))
	if r.IntN(3) == 0 {
		req.Type.SampleType, req.Type.SampleUnit = "samples", "count"
	}
	for _, name := range []string{"service_name", "pod", "thread", profiles.LabelSampleType} {
		if r.IntN(3) == 0 {
			req.GroupBy = append(req.GroupBy, name)
		}
	}
	req.Matchers = randomMatchers(r)
	if r.IntN(4) == 0 {
		req.Limit = 1 + r.IntN(3)
	}
	if r.IntN(4) == 0 {
		req.CallSite = randomSite(r)
	}
	return req
}

func randomMatchers(r *rand.Rand) (m []*labels.Matcher) {
	if r.IntN(3) == 0 {
		m = append(m, labels.MustNewMatcher(labels.MatchRegexp, "service_name", "a|b"))
	}
	if r.IntN(4) == 0 {
		m = append(m, labels.MustNewMatcher(labels.MatchNotEqual, "pod", "x"))
	}
	return m
}

func randomSite(r *rand.Rand) (site []string) {
	for range 1 + r.IntN(2) {
		site = append(site, fmt.Sprintf("f%d", r.IntN(6)))
	}
	return site
}

func checkAgainstNaive(t *testing.T, r *rand.Rand, e *Engine, rows []*naiveRow, pushed []profiles.RawProfile) {
	t.Helper()
	for range 6 {
		req := randomSelect(r)
		if got, want := selected(t, e, req), naiveSelect(rows, req); got != want {
			t.Fatalf("%+v:\n%s\nwant\n%s", req, got, want)
		}
	}
	for range 3 {
		req := &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: epochMS + int64(r.IntN(20_000)), Matchers: randomMatchers(r)}
		req.EndMS = req.StartMS + int64(r.IntN(30_000))
		if r.IntN(3) == 0 {
			req.CallSite = randomSite(r)
		}
		if r.IntN(2) == 0 {
			for range 3 {
				req.IDs = append(req.IDs, pushed[r.IntN(len(pushed))].ID)
			}
		}
		want := naiveMerge(rows, req)
		flame, err := e.MergeFlame(context.Background(), req)
		must(t, err)
		if got := stacksOf(t, flame); !maps.Equal(got, want) {
			t.Fatalf("%+v: flame %v, want %v: %+v", req, got, want, flame)
		}
		raw, _, err := e.MergePprof(context.Background(), req)
		must(t, err)
		if got := stacksOfPprof(t, raw); !maps.Equal(got, want) {
			t.Fatalf("%+v: pprof %v, want %v", req, got, want)
		}
		checkSpans(t, r, e, rows, req)
	}
	checkHeatmap(t, r, e, rows)
	checkSpanExemplars(t, r, e)
}

func TestEngine_EqualsANaiveReference(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 7))
		dir := t.TempDir()
		s := openStore(t, dir, store.Options{Retention: -1})
		var pushed []profiles.RawProfile
		for range 2 + r.IntN(6) {
			for range r.IntN(12) {
				push := randomPush(r, pushed)
				must(t, s.Append(ctx, "t", push))
				pushed = append(pushed, push...)
			}
			if r.IntN(3) > 0 {
				must(t, s.Flush(ctx))
			}
			if len(pushed) == 0 {
				continue
			}
			rows := naiveRows(t, pushed)
			checkAgainstNaive(t, r, New(Options{}, s), rows, pushed)
			checkAgainstNaive(t, r, New(Options{}, backwards{s}), rows, pushed)
		}
		must(t, errorsOf(s.Flush(ctx), s.Compact(ctx)))
		if len(pushed) > 0 {
			checkAgainstNaive(t, r, New(Options{}, s), naiveRows(t, pushed), pushed)
		}
		must(t, s.Close())
		if len(pushed) > 0 {
			checkAgainstNaive(t, r, New(Options{}, openStore(t, dir, store.Options{Retention: -1})), naiveRows(t, pushed), pushed)
		}
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// backwards is a store that returns its sources in reverse order.
type backwards struct{ *store.Store }

func (b backwards) View(ctx context.Context, tenant string, minNS, maxNS int64) (*store.View, error) {
	v, err := b.Store.View(ctx, tenant, minNS, maxNS)
	if err == nil {
		slices.Reverse(v.Sources)
	}
	return v, err
}

var (
	_ block.Source = (*block.Reader)(nil)
	_              = pprof.Limits{}
)
