package frontend

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/promjson"
)

const (
	// pieceBytes is the size of reads and writes of the streams in memory.
	pieceBytes  = 64 << 10
	joinRepeats = 20 // joins in one reading

	spliceWhat = "in memory, two halves: splice"
	stepsWhat  = "in memory, two halves: splice, steps checked"
	copyWhat   = "in memory, two halves: copy"
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

// joiner joins the halves of a response in memory.
type joiner struct {
	side, what string
	join       func(w io.Writer, parts ...io.Reader) error
}

func joiners() []joiner {
	window := &promjson.Window{StartMS: small.StartMS, EndMS: math.MaxInt64, StepMS: small.StepMS}
	buffer := make([]byte, pieceBytes)
	return []joiner{
		{copying, copyWhat, func(w io.Writer, parts ...io.Reader) error { return copyAll(w, buffer, parts) }},
		{ferula, spliceWhat, newSplice(nil)}, {ferula, stepsWhat, newSplice(window)},
	}
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
		if _, err := io.CopyBuffer(w, part, buffer); err != nil {
			return err
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
	return b.EachRound("in memory", func(round int) error {
		for _, j := range all {
			used, err := area.CPUOf(joinRepeats, func() error {
				var written counter
				err := j.join(&written, b.halves()...)
				if err == nil {
					err = b.SameLength(j.side, j.what, int64(written.n))
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", j.what, err)
			}
			b.Add(round, j.side, j.what, nanosecondsASample, float64(used.Nanoseconds())/float64(b.response.Samples()))
		}
		return ctx.Err()
	})
}

func (b *bench) halves() []io.Reader {
	return []io.Reader{&pieces{b.response.Halves[0].Plain}, &pieces{b.response.Halves[1].Plain}}
}

// compareJoiner fails unless the output is the whole response, or, of a copy, both halves.
func (b *bench) compareJoiner(j joiner) error {
	same := &comparer{what: j.what, want: b.response.Whole.Plain}
	if j.side == copying {
		same.want = append(append([]byte{}, b.response.Halves[0].Plain...), b.response.Halves[1].Plain...)
	}
	if err := j.join(same, b.halves()...); err != nil {
		return fmt.Errorf("%s: %w", j.what, err)
	}
	return same.done()
}
