package frontend

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/httpbody"
)

const (
	repeatsMax  = 10_000 // limit of remembered responses
	unsortedMax = 1000   // limit of remembered queries
	// copiesMax limits how often one response is written to the cache, compressed. A cache that has lost it so often is
	// too small for it, and every further copy would evict parts, which cost more than compression.
	copiesMax = 3
)

// sentResponse is what is known of a remembered response. The compressed length belongs to the extent: another
// process, or a concurrent request, may replace it by one of another length.
type sentResponse struct {
	plain  int64 // uncompressed length if the compressed form was written to the cache, otherwise 0
	copies int   // how often it was written
}

// responseID is a hash of everything that determines the compressed bytes of a response: the query, its parts with
// the IDs of their extents, and the encoding.
type responseID [sha256.Size]byte

// responseID returns the ID of the compressed response of a plan. ok is false if the client accepts no compression
// or if a part is not cached.
func (x *requestContext) responseID(p plan) (id responseID, ok bool) {
	encoding := httpbody.Accepted(x.r.Header.Values("Accept-Encoding"))
	if encoding == "" || x.f.opts.NoCompression || len(p.parts) == 0 {
		return id, false
	}
	var k keyBuilder
	k.part(encoding)
	k.part(p.query.key())
	var part [4 * 8]byte
	for _, planned := range p.parts {
		if planned.cached == nil {
			return id, false
		}
		for i, v := range []uint64{uint64(planned.StartMS), uint64(planned.EndMS), uint64(planned.StepMS),
			planned.cached.ID()} {
			binary.BigEndian.PutUint64(part[8*i:], v)
		}
		k.part(string(part[:]))
	}
	return sha256.Sum256([]byte(k.String())), true
}

// cacheKey returns the key of the compressed response. No key of a part begins in the same way: those begin with a
// length.
func (id responseID) cacheKey() string { return "compressed|" + hex.EncodeToString(id[:]) }

// respondFromCache responds to a query whose parts are all cached. When such a query is repeated, the second
// response is also written to the cache, compressed, and the next ones are copied from there: compression costs many
// times more than all the rest. If the cache loses it, it is written again, copiesMax times in all. Short responses
// are not written, because they may be shared by clients of different encodings. It returns false, and has not
// responded, if the plan has other parts or the client accepts no compression.
func (f *Frontend) respondFromCache(x *requestContext, p plan) (ok bool, err error) {
	id, ok := x.responseID(p)
	if !ok {
		return false, nil
	}
	sent, seen := f.repeats.get(id)
	if sent.plain > 0 {
		if body, length := f.openCompressed(x.r.Context(), p, id); body != nil {
			p.release() // before the response is sent: a slow client must not hold the memory of parts that are not read
			return true, x.response.sendEncoded(body, length, sent.plain)
		}
	}
	// A part that the cache has lost in the meantime was fetched: the response may be another one.
	repeatable := func() bool {
		return err == nil && x.cache == cacheState(1, 0) && x.response.written > sharedResponseMaxBytes
	}
	if !seen || sent.copies == copiesMax {
		if err = f.fetchAndSplice(x, p); !seen && repeatable() {
			f.repeats.put(id, sentResponse{})
		}
		return true, err
	}
	first, last := p.parts[0], p.parts[len(p.parts)-1]
	writer := f.opts.Cache.Writer(id.cacheKey(), first.StartMS, last.EndMS, 0)
	defer writer.Abort()
	x.response.tee = writer
	err = f.fetchAndSplice(x, p)
	x.response.tee = nil
	if repeatable() {
		writer.Commit()
		f.repeats.put(id, sentResponse{x.response.written, sent.copies + 1})
	}
	return true, err
}

// openCompressed returns the compressed response of a plan with its length, or nil if the cache has lost it.
func (f *Frontend) openCompressed(ctx context.Context, p plan, id responseID) (body *cache.Reader, length int64) {
	first, last := p.parts[0], p.parts[len(p.parts)-1]
	extent := f.opts.Cache.Lookup(ctx, id.cacheKey(), first.StartMS, last.EndMS)
	if extent == nil {
		return nil, 0
	}
	length = extent.Length()
	body, err := extent.Open(ctx)
	if err != nil {
		f.opts.Logger.Warn("Failed to open a compressed response: compressing it again", "err", err)
		return nil, 0
	}
	return body, length
}

func (p plan) release() {
	for i := range p.parts {
		p.parts[i].release()
	}
}

// sendEncoded sends a whole response that is already compressed in the encoding that the client accepts, and closes
// body. length is the length of body, plain of the response.
func (rw *responseWriter) sendEncoded(body io.ReadCloser, length, plain int64) (err error) {
	defer body.Close()
	if rw.call != nil { // other clients of the call may accept other encodings
		rw.call.tooLong = true
		rw.call = nil
		rw.finishCall()
	}
	rw.open("application/json")
	if _, err := io.Copy(rw.body.Encoded(length), body); err != nil {
		if !rw.begun() {
			err = fmt.Errorf("%w: %w", errCacheLost, err)
		}
		return err
	}
	rw.written = plain
	return nil
}
