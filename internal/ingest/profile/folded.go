package profile

import (
	"bytes"
	"strconv"
	"time"

	"github.com/ferula-io/ferula/internal/codec/pprof"
)

// stacksMax and depthMax limit one upload of folded stacks.
const (
	stacksMax = 500_000
	depthMax  = 4096
)

// foldedProfile encodes folded stacks as a pprof.
type foldedProfile struct {
	encoder   *pprof.Encoder
	locations map[string]uint64
	stack     []uint64 // leaf first
	stacks    int
	factor    int64 // by which counts are multiplied
}

// newFolded starts a profile with the units of /ingest. CPU samples are converted
// to nanoseconds, the unit that pprof tools expect, by the sample rate (in Hz).
func newFolded(units string, rate uint64, from, until time.Time) *foldedProfile {
	f := &foldedProfile{encoder: pprof.NewEncoder(), locations: map[string]uint64{}, factor: 1}
	period := int64(1e9) / int64(rate)
	switch units {
	case "", "samples":
		f.factor = period
		f.encoder.SampleType("cpu", "nanoseconds")
		f.encoder.Period("cpu", "nanoseconds", period)
	case "bytes":
		f.encoder.SampleType("inuse_space", "bytes")
		f.encoder.Period("space", "bytes", 1)
	case "objects":
		f.encoder.SampleType("inuse_objects", "count")
		f.encoder.Period("space", "bytes", 1)
	case "goroutines":
		f.encoder.SampleType("goroutine", "count")
		f.encoder.Period("goroutine", "count", 1)
	case "lock_nanoseconds":
		f.encoder.SampleType("delay", "nanoseconds")
		f.encoder.Period("contentions", "count", 1)
	case "lock_samples":
		f.encoder.SampleType("contentions", "count")
		f.encoder.Period("contentions", "count", 1)
	default:
		f.encoder.SampleType("samples", units)
		f.encoder.Period("samples", units, 1)
	}
	f.encoder.Times(from.UnixNano(), until.Sub(from).Nanoseconds())
	return f
}

func (f *foldedProfile) location(name []byte) uint64 {
	id, ok := f.locations[string(name)]
	if !ok {
		valid := string(bytes.ToValidUTF8(name, []byte("\uFFFD")))
		id = f.encoder.Location(f.encoder.Function(valid, valid, "", 0), 0)
		f.locations[string(name)] = id
	}
	return id
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

// readGroups parses lines of the form `main;work;loop 17`.
func (f *foldedProfile) readGroups(body []byte) error {
	for number := 1; len(body) > 0; number++ {
		line, rest, _ := bytes.Cut(body, []byte{'\n'})
		body = rest
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		at := bytes.LastIndexByte(line, ' ')
		if at <= 0 {
			return badRequest("line %d: %.100q is not of the form stack count", number, line)
		}
		count, err := strconv.ParseInt(string(line[at+1:]), 10, 64)
		if err != nil || count < 0 {
			return badRequest("line %d: %.100q is not a count", number, line[at+1:])
		}
		if err := f.add(bytes.TrimSpace(line[:at]), count); err != nil {
			return err
		}
	}
	return nil
}

// readLines parses one stack per line, each with a count of 1.
func (f *foldedProfile) readLines(body []byte) error {
	for len(body) > 0 {
		line, rest, _ := bytes.Cut(body, []byte{'\n'})
		body = rest
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if err := f.add(line, 1); err != nil {
			return err
		}
	}
	return nil
}
