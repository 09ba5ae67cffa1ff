package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// recordingInflation is the limit of a decompressed flight recording, as a multiple of
// the limit of a profile as sent.
const recordingInflation = 4

// measured describes a profile that is built from the events of a flight recording.
type measured struct {
	name, period, periodUnit string // of the profile type
	types                    [][2]string
}

// Profiles built from flight recordings.
var (
	javaCPU    = &measured{"process_cpu", "cpu", "nanoseconds", [][2]string{{"cpu", "nanoseconds"}}}
	javaWall   = &measured{"wall", "wall", "nanoseconds", [][2]string{{"wall", "nanoseconds"}}}
	javaInTLAB = &measured{"memory", "space", "bytes", [][2]string{{"alloc_in_new_tlab_objects", "count"},
		{"alloc_in_new_tlab_bytes", "bytes"}}}
	javaOutside = &measured{"memory", "space", "bytes", [][2]string{{"alloc_outside_tlab_objects", "count"},
		{"alloc_outside_tlab_bytes", "bytes"}}}
	javaAllocation = &measured{"memory", "space", "bytes", [][2]string{{"alloc_sample_objects", "count"},
		{"alloc_sample_bytes", "bytes"}}}
	javaLive = &measured{"memory", "objects", "count", [][2]string{{"live", "count"}}}
	javaLock = &measured{"mutex", "mutex", "count", [][2]string{{"contentions", "count"}, {"delay", "nanoseconds"}}}
	javaPark = &measured{"block", "block", "count", [][2]string{{"contentions", "count"}, {"delay", "nanoseconds"}}}
)

// recording builds profiles from the events of a flight recording.
type recording struct {
	upload   *upload
	wall     bool                   // executions are samples of wall time, too
	contexts map[uint64][][2]string // labels by jfrEvent.context
	building map[*measured]*builtProfile
	order    []*measured
}

type builtProfile struct {
	encoder   *pprof.Encoder
	functions map[string]uint64
	locations map[jfrFrame]uint64
	index     map[sampleOf]int
	samples   []builtSample
}

// sampleOf identifies equal samples within a chunk.
type sampleOf struct {
	chunk          int
	stack, context uint64
}

type builtSample struct {
	stack  []uint64
	labels [][2]string
	values [2]int64
}

// recordingProfiles converts a flight recording to profiles, one for each kind of profile
// that has events.
func recordingProfiles(u *upload, lset []profilepb.RawLabel) ([]profilepb.RawProfile, error) {
	limit := recordingInflation * u.limits.ProfileBytes
	raw, err := decompressed(u.profile, limit)
	if err != nil {
		return nil, u.limits.hinted(err)
	}
	snapshot, err := decompressed(u.labels, limit)
	if err != nil {
		return nil, u.limits.hinted(err)
	}
	r := &recording{upload: u, building: map[*measured]*builtProfile{}}
	if r.contexts, err = recordingLabels(snapshot); err != nil {
		return nil, err
	}
	setting, err := decodeJFR(raw, nil)
	if r.wall = setting == "wall"; err == nil {
		_, err = decodeJFR(raw, r.add)
	}
	if errors.Is(err, errJFR) {
		return nil, badRequest("%v", err)
	}
	if err != nil {
		return nil, err
	}
	var all []profilepb.RawProfile
	for _, m := range r.order {
		all = append(all, profilepb.RawProfile{
			Labels: append(lset[:len(lset):len(lset)], profilepb.RawLabel{Name: profiles.LabelName, Value: m.name}),
			Raw:    r.encode(m), TimeNS: u.from.UnixNano(),
		})
	}
	return all, nil
}

// decompressed returns b, decompressed if it is gzip.
func decompressed(b []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(b, []byte(gzipMagic)) {
		return b, nil
	}
	return gunzip(b, limit, func() error {
		return limitError("profile_size", "a recording of more than %d bytes when decompressed", limit)
	})
}

// contextsMax is the maximum number of label sets of a recording.
const contextsMax = 100_000

// recordingLabels decodes the labels that Pyroscope's Java agent sends with a recording, a message LabelsSnapshot. The
// keys of the result are the ids of contexts, to which jfrEvent.context refers.
//
//	LabelsSnapshot  1 {1 id  2 {1 label*}}*   contexts     label  1 id of its name  2 id of its value
//	                2 {1 id  2 text}*         texts
func recordingLabels(b []byte) (map[uint64][][2]string, error) {
	texts, raw := map[uint64]string{}, map[uint64][][2]uint64{}
	err := eachField(b, func(f protoField) error {
		var id uint64
		var value []byte
		entry := func(b []byte) error { return eachField(b, func(f protoField) error { return f.set(&id, &value) }) }
		if err := f.set(entry, entry); err != nil || f.number > 2 {
			return err
		}
		if f.number == 2 {
			texts[id] = string(value)
			return nil
		}
		var labels [][2]uint64
		if err := eachField(value, func(f protoField) error {
			return f.set(func(b []byte) error {
				var label [2]uint64
				err := eachField(b, func(f protoField) error { return f.set(&label[0], &label[1]) })
				labels = append(labels, label)
				return err
			})
		}); err != nil {
			return err
		}
		if raw[id] = labels; len(raw) > contextsMax {
			return badRequest("more than %d sets", contextsMax)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("labels: %w", err)
	}
	contexts := make(map[uint64][][2]string, len(raw))
	for id, labels := range raw {
		for _, l := range labels {
			contexts[id] = append(contexts[id], [2]string{texts[l[0]], texts[l[1]]})
		}
	}
	return contexts, nil
}

// add adds an event to the profile of its kind. An execution is one sample of CPU time, unless its
// thread slept, and of wall time if wall is set. A sample of time is worth one sampling period.
func (r *recording) add(e *jfrEvent) error {
	period := int64(1e9) / int64(r.upload.rate)
	if e.kind != javaCPU {
		values := [2]int64{e.count, e.amount}
		if e.kind == javaWall {
			if e.count > math.MaxInt64/period {
				return badRequest("the values of a stack overflow")
			}
			values = [2]int64{e.count * period}
		}
		return r.sample(e.kind, e, values)
	}
	if r.wall {
		if err := r.sample(javaWall, e, [2]int64{period}); err != nil {
			return err
		}
	}
	if e.state == "STATE_SLEEPING" {
		return nil
	}
	return r.sample(javaCPU, e, [2]int64{period})
}

func (r *recording) sample(m *measured, e *jfrEvent, values [2]int64) error {
	b := r.building[m]
	if b == nil {
		b = &builtProfile{encoder: pprof.NewEncoder(), functions: map[string]uint64{}, locations: map[jfrFrame]uint64{},
			index: map[sampleOf]int{}}
		r.building[m], r.order = b, append(r.order, m)
	}
	key := sampleOf{e.chunk, e.stackID, e.context}
	n, ok := b.index[key]
	if !ok {
		if n = len(b.samples); n >= stacksMax {
			return limitError("symbols", "more than %d stacks", stacksMax)
		}
		b.index[key] = n
		b.samples = append(b.samples, builtSample{stack: b.stack(e.stack), labels: r.contexts[e.context]})
	}
	for i, v := range values {
		if b.samples[n].values[i] += v; b.samples[n].values[i] < 0 {
			return badRequest("the values of a stack overflow")
		}
	}
	return nil
}

func (b *builtProfile) stack(frames []jfrFrame) []uint64 {
	stack := make([]uint64, 0, len(frames))
	for _, f := range frames {
		id, ok := b.locations[f]
		if !ok {
			function, known := b.functions[f.method]
			if !known {
				name := strings.ToValidUTF8(f.method, "\uFFFD")
				function = b.encoder.Function(name, name, "", 0)
				b.functions[f.method] = function
			}
			id = b.encoder.Location(function, int64(f.line))
			b.locations[f] = id
		}
		stack = append(stack, id)
	}
	return stack
}

func (r *recording) encode(m *measured) []byte {
	b := r.building[m]
	for _, t := range m.types {
		b.encoder.SampleType(t[0], t[1])
	}
	b.encoder.Period(m.period, m.periodUnit, 1)
	b.encoder.Times(r.upload.from.UnixNano(), r.upload.until.Sub(r.upload.from).Nanoseconds())
	for i := range b.samples {
		s := &b.samples[i]
		b.encoder.LabelledSample(s.stack, s.labels, s.values[:len(m.types)]...)
	}
	return b.encoder.Append(nil)
}
