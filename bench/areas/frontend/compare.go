package frontend

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/proc"
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

// compare sends a request and fails unless the response is complete. ferula's response must equal the expected bytes.
// Thanos' response, which is encoded differently, must have the expected series, times and values. The relay's
// response must have the bytes of the halves, one after the other.
func (b *bench) compare(ctx context.Context, f *front, a *canned.Response, q request) error {
	got, err := b.same(ctx, f, a, q)
	if err == nil {
		err = b.SameLength(f.Name, q.what, got.Bytes)
	}
	b.Add(1, f.Name, "bytes on the wire: "+q.what, area.Bytes, float64(got.Wire))
	b.Logf("responses are equal: %s: %s, %d bytes", f.Name, q.what, got.Bytes)
	return err
}

// same is compare without a record. Only compressed responses and those of Thanos are held in memory.
func (b *bench) same(ctx context.Context, f *front, a *canned.Response, q request) (proc.Response, error) {
	what, want := f.Name+": "+q.what, a.Whole.Plain
	if f.Name == relay {
		want = append(append([]byte{}, a.Halves[0].Plain...), a.Halves[1].Plain...)
	}
	bytewise := f.Name == relay || f.Name == ferula && !b.Programs.Null
	if bytewise && q.encoding == "" {
		same := &comparer{what: what, want: want}
		got, err := b.send(ctx, f, a, q, same)
		if err == nil {
			err = same.done()
		}
		return got, err
	}
	var body bytes.Buffer
	got, err := b.send(ctx, f, a, q, &body)
	if err != nil {
		return got, err
	}
	return got, sameResponse(what, bytewise, q.encoding, body.Bytes(), want)
}

// sameResponse fails unless a response has the expected bytes, or the expected series, times and values.
func sameResponse(what string, bytewise bool, encoding string, body, want []byte) error {
	plain, err := area.Decompressed(encoding, body)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if bytewise {
		return area.SameBytes(what, plain, want)
	}
	got, err := area.DecodeMatrix(plain)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	expected, err := area.DecodeMatrix(want)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return area.SameMatrix(what, got, expected, 0)
}

var _ io.Writer = (*comparer)(nil)
