package frontend

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	typedcodecs "github.com/ferula-io/ferula/bench/typed"
	"github.com/ferula-io/ferula/promjson"
)

// pieceBytes is the size of reads and writes of the streams in memory.
const pieceBytes = 64 << 10

// The kinds of readings that are taken in memory.
const (
	joinWhat   = "in memory, two halves: "
	recodeWhat = "in memory, decode and encode: "
	spliceWhat = joinWhat + "splice"
	stepsWhat  = joinWhat + "splice, steps checked"
	copyWhat   = joinWhat + "copy"
)

// pieces is a stream that returns the bytes in pieces, as a connection does.
type pieces struct{ rest []byte }

func (p *pieces) Read(dst []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(dst[:min(len(dst), pieceBytes)], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// counter is a stream that counts and drops its bytes.
type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// joiner joins parts in memory.
type joiner struct {
	side, what string
	repeats    int // joins in one reading
	join       func(w io.Writer, parts ...io.Reader) error
	exact      bool // its output equals the whole response, byte for byte
	recode     bool // its input is the whole response as one part
}

func joiners() []joiner {
	var all []joiner
	for _, c := range typedcodecs.Codecs() {
		all = append(all, joiner{side: typed, what: joinWhat + c.Name, repeats: 3, join: c.Join, exact: true})
	}
	window := &promjson.Window{StartMS: small.StartMS, EndMS: math.MaxInt64, StepMS: small.StepMS}
	buffer := make([]byte, pieceBytes)
	all = append(all,
		joiner{side: copying, what: copyWhat, repeats: 20, join: func(w io.Writer, parts ...io.Reader) error { return copyAll(w, buffer, parts) }},
		joiner{side: ferula, what: spliceWhat, repeats: 20, join: newSplice(nil), exact: true},
		joiner{side: ferula, what: stepsWhat, repeats: 20, join: newSplice(window), exact: true},
	)
	for _, c := range typedcodecs.Codecs() {
		all = append(all, joiner{side: typed, what: recodeWhat + c.Name, repeats: 3, join: c.Join, exact: true, recode: true})
	}
	return all
}

// newSplice returns a function that joins parts with a Splicer, as the frontend does. With a window it also checks that the
// timestamps are at the steps of the query, as the frontend does with parts from the downstream.
func newSplice(window *promjson.Window) func(w io.Writer, parts ...io.Reader) error {
	splicer := promjson.Splicer{WriteBytes: pieceBytes}
	var scanners []*promjson.Scanner
	return func(w io.Writer, parts ...io.Reader) error {
		for len(scanners) < len(parts) {
			scanners = append(scanners, promjson.NewScanner(nil, promjson.Options{BufferBytes: pieceBytes}))
		}
		for i, part := range parts {
			scanners[i].Reset(part)
			if window != nil {
				scanners[i].SetWindow(*window)
			}
		}
		_, err := splicer.Splice(w, scanners[:len(parts)]...)
		return err
	}
}

// copyAll copies the parts through one buffer: each byte is copied once.
func copyAll(w io.Writer, buffer []byte, parts []io.Reader) error {
	for _, part := range parts {
		for {
			n, err := part.Read(buffer)
			if _, werr := w.Write(buffer[:n]); werr != nil {
				return werr
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// memory takes the readings that need no processes.
func (b *bench) memory(ctx context.Context) error {
	all := joiners()
	for _, j := range all {
		if err := b.compareJoiner(j); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, j := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := b.measureJoiner(round, j); err != nil {
				return err
			}
		}
		b.env.Logf("round %d of %d: in memory", round, b.env.Rounds)
	}
	return nil
}

func (b *bench) parts(j joiner) []io.Reader {
	if j.recode {
		return []io.Reader{&pieces{b.response.Whole.Plain}}
	}
	return []io.Reader{&pieces{b.response.Halves[0].Plain}, &pieces{b.response.Halves[1].Plain}}
}

func (b *bench) compareJoiner(j joiner) error {
	same := &comparer{what: j.what, want: b.response.Whole.Plain}
	if !j.exact {
		same.want = append(append([]byte{}, b.response.Halves[0].Plain...), b.response.Halves[1].Plain...)
	}
	if err := j.join(same, b.parts(j)...); err != nil {
		return fmt.Errorf("%s: %w", j.what, err)
	}
	return same.done()
}

func (b *bench) measureJoiner(round int, j joiner) error {
	runtime.GC()
	before := proc.SelfCPU()
	for range j.repeats {
		var written counter
		if err := j.join(&written, b.parts(j)...); err != nil {
			return fmt.Errorf("%s: %w", j.what, err)
		}
		if j.exact && written.n != len(b.response.Whole.Plain) {
			return fmt.Errorf("%s: %w: %d bytes", j.what, area.ErrUnequal, written.n)
		}
	}
	runtime.GC()
	used := proc.SelfCPU() - before
	b.out.Recorder.Add(round, j.side, j.what, nanosecondsASample, float64(used.Nanoseconds())/float64(j.repeats*b.response.Samples()))
	return nil
}
