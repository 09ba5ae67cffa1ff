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
	"os"
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

// read is one thing that is asked.
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

// of asks for the series of a spec from mint to maxt.
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

// answer says how a request was answered.
type answer struct {
	bytes              int64
	firstByte, elapsed time.Duration
	hash               []byte // of the body, if it was asked for
}

// ask posts a request and drains the answer.
func ask(ctx context.Context, base string, r read, sum hash.Hash) (answer, error) {
	var a answer
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
	begun := time.Now()
	resp, err := client.Do(request)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // only to be quoted
		return a, fmt.Errorf("%s: %s: %w %s: %s", base, r.what, proc.ErrStatus, resp.Status, text)
	}
	buffer := make([]byte, 256<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 && a.bytes == 0 {
			a.firstByte = time.Since(begun)
		}
		a.bytes += int64(n)
		if sum != nil {
			_, _ = sum.Write(buffer[:n])
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
	a.elapsed = time.Since(begun)
	return a, nil
}

var client = &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 256 << 10, MaxIdleConnsPerHost: readers}}

// askAll has n readers ask the same at once, and gives the longest answer's time.
func askAll(ctx context.Context, base string, r read, n int) (answer, error) {
	answers, errs := make([]answer, n), make([]error, n)
	var asking sync.WaitGroup
	for i := range n {
		asking.Go(func() { answers[i], errs[i] = ask(ctx, base, r, nil) })
	}
	asking.Wait()
	slowest := answers[0]
	for _, a := range answers {
		if a.bytes != slowest.bytes {
			errs = append(errs, fmt.Errorf("%s: %s: %d and %d bytes", base, r.what, a.bytes, slowest.bytes))
		}
		slowest.firstByte, slowest.elapsed = max(slowest.firstByte, a.firstByte), max(slowest.elapsed, a.elapsed)
	}
	return slowest, errors.Join(errs...)
}

// askHashed asks and gives the hash of the body.
func askHashed(ctx context.Context, base string, r read) (answer, error) {
	return ask(ctx, base, r, sha256.New())
}

// drained is what ferula's client, as a process, says that it reads from a server.
func drained(ctx context.Context, drain *proc.Server, base string, r read) (string, error) {
	form := "chunks"
	if r.form == samples {
		form = "samples"
	}
	said, _, err := drain.Fetch(ctx, proc.Request{Path: "/drain", Query: url.Values{
		"url": {base + "/api/v1/read"}, "metric": {r.matchers[0].Value}, "form": {form},
		"start": {strconv.FormatInt(r.mint, 10)}, "end": {strconv.FormatInt(r.maxt, 10)},
	}})
	return strings.TrimSpace(string(said)), err
}

// times are the seconds that a process has spent in user and in system mode, in ticks of 10 ms.
func times(pid int) (user, sys float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %w", pid, proc.ErrMissing)
	}
	if user, err = strconv.ParseFloat(fields[11], 64); err != nil {
		return 0, 0, err
	}
	sys, err = strconv.ParseFloat(fields[12], 64)
	return user / 100, sys / 100, err
}
