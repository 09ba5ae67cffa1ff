package ingest

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// stacksMax and depthMax limit one upload of folded stacks.
const (
	stacksMax = 500_000
	depthMax  = 4096
)

// foldedType describes the values of folded stacks: the name of the profile, and its sample and period types.
type foldedType struct {
	name               string // of the profile
	sample, unit       string
	period, periodUnit string
	time               bool // counts of samples are converted to nanoseconds
}

var foldedCPU = foldedType{"process_cpu", "cpu", "nanoseconds", "cpu", "nanoseconds", true}

// foldedUnits maps the parameter units of /ingest to types.
var foldedUnits = map[string]foldedType{
	"":                 foldedCPU,
	"samples":          foldedCPU,
	"bytes":            {"memory", "inuse_space", "bytes", "space", "bytes", false},
	"objects":          {"memory", "inuse_objects", "count", "space", "bytes", false},
	"goroutines":       {"goroutines", "goroutine", "count", "goroutine", "count", false},
	"lock_nanoseconds": {"mutex", "delay", "nanoseconds", "contentions", "count", false},
	"lock_samples":     {"mutex", "contentions", "count", "contentions", "count", false},
}

// foldedSuffixes maps the suffix of the application's name, such as cpu in app.cpu, to types.
var foldedSuffixes = map[string]foldedType{
	"cpu":            foldedCPU,
	"itimer":         foldedCPU,
	"wall":           {"wall", "wall", "nanoseconds", "wall", "nanoseconds", true},
	"inuse_objects":  {"memory", "inuse_objects", "count", "space", "bytes", false},
	"inuse_space":    {"memory", "inuse_space", "bytes", "space", "bytes", false},
	"alloc_objects":  {"memory", "alloc_objects", "count", "space", "bytes", false},
	"alloc_space":    {"memory", "alloc_space", "bytes", "space", "bytes", false},
	"goroutines":     {"goroutines", "goroutine", "count", "goroutine", "count", false},
	"mutex_count":    {"mutex", "contentions", "count", "contentions", "count", false},
	"mutex_duration": {"mutex", "delay", "nanoseconds", "contentions", "count", false},
	"block_count":    {"block", "contentions", "count", "contentions", "count", false},
	"block_duration": {"block", "delay", "nanoseconds", "contentions", "count", false},
}

// foldedTypeOf returns the type of folded stacks, and the application's name as the service. If a
// suffix of the name determined the type, service lacks this suffix.
func foldedTypeOf(app, units string) (t foldedType, service string) {
	if at := strings.LastIndexByte(app, '.'); at > 0 {
		if t, ok := foldedSuffixes[app[at+1:]]; ok {
			t.time = t.time && (units == "" || units == "samples") // with other units the counts are times already
			return t, app[:at]
		}
	}
	if t, ok := foldedUnits[units]; ok {
		return t, app
	}
	return foldedType{name: "process_cpu", sample: "samples", unit: units, period: "samples", periodUnit: units}, app
}

// foldedProfile encodes folded stacks as a pprof.
type foldedProfile struct {
	encoder   *pprof.Encoder
	locations map[string]uint64
	stack     []uint64 // leaf first
	stacks    int
	factor    int64 // by which counts are multiplied
}

// newFolded starts a profile. If t.time is set, counts of samples are converted to nanoseconds, the
// unit that pprof tools expect: a sample is 1e9/rate ns. rate is in Hz.
func newFolded(t foldedType, rate uint64, from, until time.Time) *foldedProfile {
	f := &foldedProfile{encoder: pprof.NewEncoder(), locations: map[string]uint64{}, factor: 1}
	period := int64(1)
	if t.time {
		period = int64(1e9) / int64(rate)
		f.factor = period
	}
	f.encoder.SampleType(t.sample, t.unit)
	f.encoder.Period(t.period, t.periodUnit, period)
	f.encoder.Times(from.UnixNano(), until.Sub(from).Nanoseconds())
	return f
}

func (f *foldedProfile) location(name []byte) uint64 {
	id, ok := f.locations[string(name)]
	if !ok {
		valid := string(bytes.ToValidUTF8(name, []byte("\uFFFD")))
		file, line := sourceOf(valid)
		id = f.encoder.Location(f.encoder.Function(valid, valid, file, 0), line)
		f.locations[string(name)] = id
	}
	return id
}

// sourceOf returns the file and the line that a frame's name contains. Profilers use these forms:
//
//	app/main.py:12 - work     Pyroscope's SDKs for Python and Ruby
//	app/main.py:12 work
//	work (app/main.py:12)     py-spy
//	work - app/main.rb:12     rbspy
//
// If the name has another form, file is empty. The name itself is not changed, so that flame graphs
// show the frames as the profiler sent them.
func sourceOf(name string) (file string, line int64) {
	if left, _, ok := strings.Cut(name, " - "); ok {
		if file, line, ok := splitSource(left); ok {
			return file, line
		}
		if file, line, ok := splitSource(name[strings.LastIndex(name, " - ")+3:]); ok {
			return file, line
		}
	}
	if inner, ok := strings.CutSuffix(name, ")"); ok {
		if file, line, ok := splitSource(inner[strings.LastIndexByte(inner, '(')+1:]); ok {
			return file, line
		}
	}
	if left, _, ok := strings.Cut(name, " "); ok {
		if file, line, ok := splitSource(left); ok {
			return file, line
		}
	}
	return "", 0
}

// splitSource splits `file:line`. The file must contain a dot or a slash, as paths do, or a <, as
// <frozen importlib._bootstrap> does.
func splitSource(text string) (file string, line int64, ok bool) {
	at := strings.LastIndexByte(text, ':')
	if at <= 0 || !strings.ContainsAny(text[:at], "./<") {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text[at+1:], 10, 31)
	return text[:at], int64(n), err == nil
}

// add adds one stack: function names joined by semicolons, root first.
func (f *foldedProfile) add(names []byte, count int64) error {
	if f.stacks++; f.stacks > stacksMax {
		return limitError("symbols", "more than %d stacks", stacksMax)
	}
	if depth := bytes.Count(names, []byte{';'}) + 1; depth > depthMax {
		return limitError("symbols", "a stack of %d frames, at most %d", depth, depthMax)
	}
	value := count * f.factor
	if f.factor > 1 && value/f.factor != count {
		return badRequest("%d samples overflow a value in nanoseconds", count)
	}
	f.stack = f.stack[:0]
	for len(names) > 0 {
		at := bytes.LastIndexByte(names, ';')
		f.stack = append(f.stack, f.location(names[at+1:]))
		names = names[:max(at, 0)]
	}
	f.encoder.Sample(f.stack, value)
	return nil
}

// read parses one stack per line. With counted, lines have the form `main;work;loop 17`; otherwise each counts once.
func (f *foldedProfile) read(body []byte, counted bool) error {
	number := 0
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		count := int64(1)
		if counted {
			at := bytes.LastIndexByte(line, ' ')
			if at <= 0 {
				return badRequest("line %d: %.100q is not of the form stack count", number, line)
			}
			var err error
			if count, err = strconv.ParseInt(string(line[at+1:]), 10, 64); err != nil || count < 0 {
				return badRequest("line %d: %.100q is not a count", number, line[at+1:])
			}
			line = bytes.TrimSpace(line[:at])
		}
		if err := f.add(line, count); err != nil {
			return err
		}
	}
	return nil
}
