package frontend

import (
	"io"
	"net/http"
	"strings"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
)

// copyBytes is the size of reads from the downstream. The reads are large, because their number
// dominates the cost of passing a response through.
const copyBytes = 256 << 10

var copyBuffers = bufpool.New(copyBytes, copyBytes)

// passThrough streams the downstream's response unchanged. A request that may change
// state is sent once, since a failure does not show whether the downstream executed it.
func (f *Frontend) passThrough(x *requestContext, q query) error {
	req := q.request(f.opts.retries(x.kind))
	req.Method, req.Body = x.r.Method, x.body
	if !req.IsIdempotent() {
		req.Retries = -1
	}
	free, err := f.slots(x, 1)
	if err != nil {
		return err
	}
	defer free(1)
	since := f.opts.Now()
	resp, err := f.opts.Downstream.Open(x.r.Context(), req)
	x.stage("fetch", since)
	if err != nil {
		return err
	}
	return f.relay(x, resp)
}

// retries returns the number of retries of a kind of request: each kind has a flag.
func (o *Options) retries(k kind) int {
	switch k {
	case kindRange:
		return o.RangeRetries
	case kindLabels:
		return o.Labels.Retries
	default:
		return o.InstantRetries
	}
}

// relay sends a downstream's response to the client, whatever its status.
func (f *Frontend) relay(x *requestContext, resp *downstream.Response) error {
	defer resp.Body.Close()
	x.status = resp.Status
	resp.CopyHeader(x.w.Header())
	x.response.open(resp.Header.Get("Content-Type"))
	x.response.body.SetStatus(resp.Status)
	buffer := copyBuffers.Get()
	defer copyBuffers.Put(buffer)
	// Without the wrapper io.CopyBuffer could use a buffer of its own.
	if _, err := io.CopyBuffer(x.response, struct{ io.Reader }{resp.Body}, (*buffer)[:cap(*buffer)]); err != nil {
		return err
	}
	if x.response.call == nil && !x.response.begun() {
		x.w.WriteHeader(resp.Status) // a response without a body
		return nil
	}
	return x.response.close()
}

// shareable reports whether identical requests may share one call. Such a request only
// reads, and its response depends on its parameters and headers alone.
func (x *requestContext) shareable() bool {
	if x.body != nil {
		return false
	}
	_, endpoint, ok := strings.Cut(x.query.path, "/api/v1/")
	if !ok || x.r.Method == http.MethodHead {
		return false
	}
	return x.kind != kindOther || endpoint == "query_exemplars" || endpoint == "metadata"
}
