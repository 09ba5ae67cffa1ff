package remoteread

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

// read is one remote read request.
type read struct {
	what       string
	form       prompb.ReadRequest_ResponseType
	mint, maxt int64 // inclusive
	matchers   []*labels.Matcher
}

const (
	chunks  = prompb.ReadRequest_STREAMED_XOR_CHUNKS
	samples = prompb.ReadRequest_SAMPLES
)

// of returns a read of the series of a spec from mint to maxt.
func of(s blocks.Spec, what string, form prompb.ReadRequest_ResponseType, mint, maxt int64, more ...*labels.Matcher) read {
	what = strings.ToLower(strings.TrimPrefix(form.String(), "STREAMED_XOR_")) + ", " + what
	return read{what, form, mint, maxt, append([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, s.Metric)}, more...)}
}

func (r read) body() ([]byte, error) {
	q, err := remote.ToQuery(r.mint, r.maxt, r.matchers, nil)
	if err != nil {
		return nil, err
	}
	plain, err := (&prompb.ReadRequest{Queries: []*prompb.Query{q}, AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{r.form}}).Marshal()
	return snappy.Encode(nil, plain), err
}

// response is the size and the timing of one response.
type response struct {
	bytes              int64
	firstByte, elapsed time.Duration
	hash               []byte // of the body, if requested
}

// send posts a request and drains the response. If sum is not nil, it hashes the body.
func send(ctx context.Context, base string, r read, sum hash.Hash) (response, error) {
	return sendPaced(ctx, base, r, sum, 0)
}

// sendAt posts a request and reads the response at bytesPerSecond at most. If the context ends the response, sendAt returns
// the part that was read, with the error.
func sendAt(ctx context.Context, base string, r read, bytesPerSecond int64) (response, error) {
	return sendPaced(ctx, base, r, nil, bytesPerSecond)
}

func sendPaced(ctx context.Context, base string, r read, sum hash.Hash, bytesPerSecond int64) (response, error) {
	var a response
	body, err := r.body()
	if err != nil {
		return a, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/v1/read", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	request.Header.Set("Accept-Encoding", "identity")
	request.Header.Set("Content-Encoding", "snappy")
	request.Header.Set("Content-Type", "application/x-protobuf")
	start := time.Now()
	resp, err := client.Do(request)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // only for the error message
		return a, fmt.Errorf("%s: %s: %w %s: %s", base, r.what, proc.ErrStatus, resp.Status, message)
	}
	buffer := make([]byte, 256<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 && a.bytes == 0 {
			a.firstByte = time.Since(start)
		}
		a.bytes += int64(n)
		if sum != nil {
			_, _ = sum.Write(buffer[:n])
		}
		if bytesPerSecond > 0 && err == nil {
			ahead := time.Duration(a.bytes)*time.Second/time.Duration(bytesPerSecond) - time.Since(start)
			select {
			case <-ctx.Done():
			case <-time.After(ahead):
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return a, fmt.Errorf("%s: %s: after %d bytes: %w", base, r.what, a.bytes, err)
		}
	}
	if sum != nil {
		a.hash = sum.Sum(nil)
	}
	a.elapsed = time.Since(start)
	return a, nil
}

var client = &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 256 << 10, MaxIdleConnsPerHost: readers}}

// sendAll sends the same request from n readers at once, and returns the times of the
// slowest response.
func sendAll(ctx context.Context, base string, r read, n int) (response, error) {
	responses, errs := make([]response, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { responses[i], errs[i] = send(ctx, base, r, nil) })
	}
	wg.Wait()
	slowest := responses[0]
	for _, a := range responses {
		if a.bytes != slowest.bytes {
			errs = append(errs, fmt.Errorf("%s: %s: %d and %d bytes", base, r.what, a.bytes, slowest.bytes))
		}
		slowest.firstByte, slowest.elapsed = max(slowest.firstByte, a.firstByte), max(slowest.elapsed, a.elapsed)
	}
	return slowest, errors.Join(errs...)
}

// sendHashed sends a request and hashes the body of the response.
func sendHashed(ctx context.Context, base string, r read) (response, error) {
	return send(ctx, base, r, sha256.New())
}

// drained returns the report of the process of ferula's client about its read from a server: the numbers of series and
// samples, and a hash.
func drained(ctx context.Context, drain *proc.Server, base string, r read) (string, error) {
	form := "chunks"
	if r.form == samples {
		form = "samples"
	}
	report, _, err := drain.Fetch(ctx, proc.Request{Path: "/drain", Query: url.Values{
		"url": {base + "/api/v1/read"}, "metric": {r.matchers[0].Value}, "form": {form},
		"start": {strconv.FormatInt(r.mint, 10)}, "end": {strconv.FormatInt(r.maxt, 10)},
	}})
	return strings.TrimSpace(string(report)), err
}
