package pages

import (
	"context"
	"fmt"
	"io"
)

// keptShare limits the size of a range that ReadAt reads into the cache to a quarter of the cache. A larger range would
// evict too many other pages.
const keptShare = 4

// ReadAt copies the bytes from off on into p, like io.ReaderAt. If a page is missing, it also requests the other
// missing pages of the range, extended at both ends to multiples of window bytes, because reads of neighbouring
// ranges follow. For example, a read of the bytes 70,000 to 80,000 with a window of 65,536 requests the missing
// pages from 65,536 to 131,072. With window 0 it requests only pages of the range. ReadAt pins one page at a time,
// so that readers of a small cache do not wait for each other forever. It copies a range that is larger than a
// quarter of the cache as Copy does.
func (o *Object) ReadAt(ctx context.Context, p []byte, off, window int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("object %s: read at %d", o.name, off)
	}
	var end error
	if left := max(o.size-off, 0); int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	if int64(len(p)) > o.cache.BytesMax()/keptShare {
		w := filler{p: p}
		if err := o.Copy(ctx, &w, off, int64(len(p))); err != nil {
			return w.n, err
		}
		return w.n, end
	}
	held, ahead := o.Reader(), int64(0) // ahead: end of the pages that this call has requested
	defer held.Release()
	for n < len(p) {
		if ctx.Err() != nil {
			return n, fmt.Errorf("object %s: %w", o.name, context.Cause(ctx))
		}
		at := off + int64(n)
		page := held.cached(o, at/Bytes)
		switch {
		case page == nil:
			if page, err = held.around(ctx, o, Span{at, int64(len(p) - n)}, window); err != nil {
				return n, err
			}
			ahead = off + int64(len(p))
		case at >= ahead:
			o.cache.counts.hits.Inc()
		}
		n += copy(p[n:], page[at%Bytes:])
		held.Release()
	}
	return n, end
}

// around reads the missing pages of a range that was extended to multiples of window, and returns the first page of the
// range. Its caller has found that the first page is missing.
func (r *Reader) around(ctx context.Context, o *Object, s Span, window int64) ([]byte, error) {
	number := s.Off / Bytes
	if end := s.Off + s.Len; window > 0 {
		s.Off -= s.Off % window
		s.Len = (end+window-1)/window*window - s.Off
	}
	if err := o.Fetch(ctx, []Span{s}); err != nil {
		if page := r.cached(o, number); page != nil {
			return page, nil // only the requests of later pages have failed
		}
		return nil, err
	}
	return r.pin(ctx, o, number, true)
}

// filler is a writer into a slice.
type filler struct {
	p []byte
	n int
}

// Write implements io.Writer.
func (f *filler) Write(b []byte) (int, error) {
	f.n += copy(f.p[f.n:], b)
	return len(b), nil
}
