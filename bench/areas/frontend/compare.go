package frontend

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/proc"
	codecs "github.com/ferula-io/ferula/bench/typed"
)

// comparer is a writer that compares the written bytes with the expected ones, so that large responses are not held in
// memory.
type comparer struct {
	what string
	want []byte
	at   int
	err  error
}

// Write implements io.Writer. It accepts bytes after a difference, so that the sender can finish.
func (c *comparer) Write(p []byte) (int, error) {
	if c.err == nil && len(p) > 0 {
		end := min(len(c.want), c.at+len(p))
		if !bytes.Equal(p, c.want[c.at:end]) {
			c.err = fmt.Errorf("after %d bytes: %w", c.at, area.SameBytes(c.what, p, c.want[c.at:end]))
		}
		c.at = end
	}
	return len(p), nil
}

// done returns the difference, if there is any.
func (c *comparer) done() error {
	if c.err == nil && c.at < len(c.want) {
		return fmt.Errorf("%s: %w: it ends after %d of %d bytes", c.what, area.ErrUnequal, c.at, len(c.want))
	}
	return c.err
}

// decompressor decompresses the bytes that are written to in, and writes them to w. done waits for the end and returns the
// error.
func decompressor(encoding string, w io.Writer) (in io.Writer, done func() error) {
	if encoding == "" {
		return w, func() error { return nil }
	}
	r, pipe := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		err := decompress(encoding, w, r)
		_ = r.CloseWithError(err) // always nil
		failed <- err
	}()
	return pipe, func() error {
		_ = pipe.Close() // always nil
		return <-failed
	}
}

func decompress(encoding string, w io.Writer, r io.Reader) error {
	switch encoding {
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, z)
		return err
	case "zstd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		defer z.Close()
		_, err = io.Copy(w, z)
		return err
	default:
		return fmt.Errorf("encoding %q", encoding)
	}
}

// compare sends a request and fails unless the response is complete. ferula's response must equal the expected bytes.
// Thanos' response, which is encoded differently, must have the expected series, times and values. The relay's
// response must have the bytes of the halves, one after the other.
func (b *bench) compare(ctx context.Context, f *front, a *canned.Response, q request) error {
	got, err := b.same(ctx, f, a, q)
	if err != nil {
		return err
	}
	b.lengths[f.side+q.what] = got.Bytes
	b.out.Recorder.Add(1, f.side, "bytes on the wire: "+q.what, area.Bytes, float64(got.Wire))
	b.env.Logf("responses are equal: %s: %s, %d bytes", f.name, q.what, got.Bytes)
	return nil
}

// same is compare without a record.
func (b *bench) same(ctx context.Context, f *front, a *canned.Response, q request) (proc.Response, error) {
	what := f.name + ": " + q.what
	bytewise := f.side == ferula && !b.env.Programs.Null
	var text bytes.Buffer
	var into io.Writer = &text
	same := &comparer{what: what, want: a.Whole.Plain}
	switch {
	case f.side == relay:
		same.want = append(append([]byte{}, a.Halves[0].Plain...), a.Halves[1].Plain...)
		into = same
	case bytewise:
		into = same
	}
	in, done := decompressor(q.encoding, into)
	got, err := b.send(ctx, f, a, q, in)
	if derr := done(); err == nil {
		err = derr
	}
	if err != nil {
		return got, err
	}
	if into == io.Writer(same) {
		return got, same.done()
	}
	return got, sameSamples(what, &text, a.Whole.Plain)
}

// sameSamples fails unless two responses hold the same series with the same times and values.
func sameSamples(what string, text io.Reader, want []byte) error {
	got, err := codecs.Decode(text)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	expected, err := codecs.Decode(bytes.NewReader(want))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return sameMatrix(what, got, expected)
}

func sameMatrix(what string, got, want promql.Matrix) error {
	if len(want) == 0 {
		return fmt.Errorf("%s: %w", what, area.ErrEmpty)
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s: %w: %d series, want %d", what, area.ErrUnequal, len(got), len(want))
	}
	for i, s := range want {
		if !labels.Equal(got[i].Metric, s.Metric) || len(got[i].Floats) != len(s.Floats) {
			return fmt.Errorf("%s: %w: %s with %d points, want %s with %d", what, area.ErrUnequal, got[i].Metric, len(got[i].Floats), s.Metric, len(s.Floats))
		}
		for j, p := range s.Floats {
			g := got[i].Floats[j]
			if g.T != p.T || math.Float64bits(g.F) != math.Float64bits(p.F) && !(math.IsNaN(g.F) && math.IsNaN(p.F)) {
				return fmt.Errorf("%s: %w: %s: %v, want %v", what, area.ErrUnequal, s.Metric, g, p)
			}
		}
	}
	return nil
}
