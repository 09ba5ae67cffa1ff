package remoteread

import (
	"context"
	"crypto/sha256"
	"hash"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

// read is one remote read request of all series of a spec.
type read struct {
	spec       blocks.Spec
	what, form string // samples or chunks
	mint, maxt int64  // inclusive
}

// The forms of responses.
const (
	chunks  = "chunks"
	samples = "samples"
)

var types = map[string]prompb.ReadRequest_ResponseType{
	chunks: prompb.ReadRequest_STREAMED_XOR_CHUNKS, samples: prompb.ReadRequest_SAMPLES,
}

// of returns a read of the series of a spec from mint to maxt.
func of(s blocks.Spec, what, form string, mint, maxt int64) read {
	return read{s, form + ", " + what, form, mint, maxt}
}

// request returns the request of a read.
func (r read) request() (proc.Request, error) {
	metric := labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, r.spec.Metric)
	q, err := remote.ToQuery(r.mint, r.maxt, []*labels.Matcher{metric}, nil)
	if err != nil {
		return proc.Request{}, err
	}
	plain, err := (&prompb.ReadRequest{
		Queries: []*prompb.Query{q}, AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{types[r.form]},
	}).Marshal()
	return proc.Request{Path: "/api/v1/read", Body: snappy.Encode(nil, plain), Header: http.Header{
		"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"},
	}}, err
}

// sink takes a response: it hashes the bytes, or is slow to take them.
type sink struct {
	sum   hash.Hash // nil: none
	rate  int64     // bytes a second, at most; 0: no limit
	begun time.Time
	bytes int64
	first func() // called with the first bytes; nil: not
}

func hashing() *sink { return &sink{sum: sha256.New()} }

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	if s.bytes == 0 {
		s.begun = time.Now()
		if s.first != nil {
			s.first()
		}
	}
	s.bytes += int64(len(p))
	if s.sum != nil {
		s.sum.Write(p)
	}
	if s.rate > 0 {
		time.Sleep(time.Duration(s.bytes)*time.Second/time.Duration(s.rate) - time.Since(s.begun))
	}
	return len(p), nil
}

// send sends the request of a read and drains the response.
func (r read) send(ctx context.Context, from *proc.Server, to *sink) (proc.Response, error) {
	request, err := r.request()
	if err != nil {
		return proc.Response{}, err
	}
	return from.Get(ctx, request, to)
}

// drained returns the report of the process of ferula's client about its read from a server: the numbers of series and
// samples, and a hash.
func (r read) drained(ctx context.Context, drain, from *proc.Server) (string, error) {
	report, _, err := drain.Fetch(ctx, proc.Request{Path: "/drain", Query: url.Values{
		"url": {from.URL() + "/api/v1/read"}, "metric": {r.spec.Metric}, "form": {r.form},
		"start": {strconv.FormatInt(r.mint, 10)}, "end": {strconv.FormatInt(r.maxt, 10)},
	}})
	return strings.TrimSpace(string(report)), err
}
