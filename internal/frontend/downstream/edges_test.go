package downstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

func TestTransport_BuildLeavesTheRestToThisPackage(t *testing.T) {
	transport, err := (Transport{}).build(-1, 7)
	checkIs(t, err, nil)
	check(t, "decoding", transport.DisableCompression, true)
	check(t, "proxy of the environment", transport.Proxy != nil, true)
	check(t, "expect_continue_timeout", transport.ExpectContinueTimeout, time.Second)
	check(t, "response_header_timeout", transport.ResponseHeaderTimeout, 0)
	check(t, "TLS", transport.TLSClientConfig.MinVersion, 0) // Go's default, 1.2
	check(t, "HTTP/2", transport.ForceAttemptHTTP2, false)
	if err := (Transport{MaxIdleConns: new(int), MaxIdleConnsPerHost: new(int), MaxConnsPerHost: new(int)}).Validate(); err != nil {
		t.Errorf("none: %v", err)
	}
}

// tryOf is a try whose response has this status and body.
func tryOf(status int, body io.Reader) (*try, *closed) {
	c := &closed{Reader: body}
	t := &try{caller: context.Background(), status: status, delimited: true}
	t.ctx, t.cancel = context.WithCancelCause(t.caller)
	t.source.body, t.source.metrics = c, newMetrics(nil)
	return t, c
}

// closed counts the bytes read of a body, and its closes.
type closed struct {
	io.Reader
	bytes, closes int
}

func (c *closed) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes += n
	return n, err
}

func (c *closed) Close() error { c.closes++; return nil }

func TestTry_OutOfTimeSearchesTheFirstBytesAndKeepsThem(t *testing.T) {
	timeout := func(bytes int) string {
		text := `{"status":"error","errorType":"timeout","error":""}`
		return strings.Replace(text, `""`, `"`+strings.Repeat("x", bytes-len(text))+`"`, 1)
	}
	for _, test := range []struct {
		status int
		body   string
		want   bool
	}{
		{503, timeout(100), true},
		{503, timeout(peekBytes), true},
		{503, timeout(peekBytes + 1), false},
		{503, strings.Replace(timeout(100), "timeout", "canceled", 1), false},
		{503, "busy", false},
		{503, "", false},
		{504, "whatever", true},
		{500, timeout(100), false},
	} {
		for name, reader := range map[string]io.Reader{"at once": strings.NewReader(test.body), "byte by byte": iotest.OneByteReader(strings.NewReader(test.body))} {
			u, source := tryOf(test.status, reader)
			check(t, fmt.Sprintf("%d with %d bytes %s", test.status, len(test.body), name), u.outOfTime(), test.want)
			if source.bytes > peekBytes || test.status != 503 && source.bytes > 0 {
				t.Errorf("%d bytes were read of status %d", source.bytes, test.status)
			}
			body, err := io.ReadAll(u)
			checkIs(t, err, nil)
			check(t, "body", string(body) == test.body, true)
			u.release()
		}
	}
	u, _ := tryOf(503, nil)
	u.source.body = nil
	check(t, "no body", u.outOfTime(), false)
}

func TestTry_ErrorAfterThePeekedBytesStays(t *testing.T) {
	gone := errors.New("gone")
	u, _ := tryOf(503, io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(gone)))
	check(t, "out of time", u.outOfTime(), false)
	got, err := io.ReadAll(u)
	checkIs(t, err, gone)
	checkIs(t, err, ErrUnavailable)
	check(t, "bytes", string(got), "ab")
	_, err = u.Read(make([]byte, 1))
	checkIs(t, err, gone)
}

func TestTry_DiscardReadsAShortRest(t *testing.T) {
	for length, want := range map[int]int{0: 0, 10: 10, discardBytes: discardBytes, discardBytes + 1: discardBytes} {
		u, source := tryOf(500, strings.NewReader(strings.Repeat("x", length)))
		u.discard()
		check(t, fmt.Sprintf("bytes read of %d", length), source.bytes, want)
		check(t, "closes", source.closes, 1)
		checkIs(t, context.Cause(u.ctx), errReleased)
		u.release()
		check(t, "closes after another release", source.closes, 1)
	}
}

// timeoutError is a timeout of the network.
type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func TestFailure_ClassifiesTheErrorOfATry(t *testing.T) {
	live := context.Background()
	gone := errors.New("the caller is gone")
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(live)
		cancel(cause)
		return ctx
	}
	reset := errors.New("reset")
	for name, test := range map[string]struct {
		err      error
		is, isnt []error
		text     string
	}{
		"the caller has gone":   {failure(ended(gone), ended(errStalled), true, reset), []error{gone}, []error{ErrUnavailable, ErrTimeout}, "downstream: the caller is gone"},
		"no byte":               {failure(live, ended(errStalled), false, reset), []error{ErrTimeout, errStalled}, []error{errUnsent}, "downstream unavailable: timed out: no byte within the idle timeout"},
		"released":              {failure(live, ended(errReleased), true, reset), []error{ErrUnavailable, reset}, []error{ErrTimeout, errUnsent}, "downstream unavailable: reset"},
		"not sent":              {failure(live, live, false, reset), []error{ErrUnavailable, errUnsent, reset}, []error{ErrTimeout}, "downstream unavailable: no connection: reset"},
		"not sent in time":      {failure(live, live, false, timeoutError{}), []error{ErrTimeout, errUnsent}, nil, "downstream unavailable: timed out: no connection: i/o timeout"},
		"timeout":               {failure(live, live, true, &net.OpError{Op: "read", Err: timeoutError{}}), []error{ErrTimeout}, []error{errUnsent}, "downstream unavailable: timed out: read: i/o timeout"},
		"an end, not a timeout": {failure(live, live, true, &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}), []error{ErrUnavailable}, []error{ErrTimeout}, "downstream unavailable: read: unexpected EOF"},
	} {
		check(t, name, test.err.Error(), test.text)
		for _, want := range test.is {
			checkIs(t, test.err, want)
		}
		for _, other := range test.isnt {
			if errors.Is(test.err, other) {
				t.Errorf("%s: %v is %v", name, test.err, other)
			}
		}
	}
}

func TestLasting_ErrorsOfTLS(t *testing.T) {
	for err, want := range map[error]bool{
		&tls.CertificateVerificationError{Err: io.EOF}:                               true,
		fmt.Errorf("%w: %w", ErrUnavailable, error(tls.RecordHeaderError{Msg: "x"})): true,
		io.EOF: false,
	} {
		check(t, err.Error(), lasting(err), want)
	}
}

func TestNewDecoding_NamesOfEncodings(t *testing.T) {
	for _, name := range []string{"", "identity", " Identity "} {
		d, err := newDecoding(name, nil)
		checkIs(t, err, nil)
		check(t, name, d == nil, true)
	}
	for _, name := range []string{"gzip", " GZIP ", "x-gzip", "zstd", "snappy", "x-snappy-framed"} {
		d, err := newDecoding(name, nil)
		checkIs(t, err, nil)
		check(t, name, d != nil, true)
	}
	_, err := newDecoding("gzip, zstd", nil)
	checkIs(t, err, ErrCorrupt)
	check(t, "error", err.Error(), `downstream response does not decode: Content-Encoding "gzip, zstd" is not known`)
}

// What needs more memory than is common is refused, not decoded.
func TestDecoding_LimitsTheMemoryOfADecoder(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 3<<20/16)
	zstdOf := func(window int) string {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		checkIs(t, err, nil)
		_, err = io.WriteString(w, text)
		checkIs(t, errors.Join(err, w.Flush(), w.Close()), nil)
		return b.String()
	}
	snappyOf := func(block int) string {
		var b bytes.Buffer
		w := s2.NewWriter(&b, s2.WriterBlockSize(block), s2.WriterConcurrency(1))
		_, err := io.WriteString(w, text)
		checkIs(t, errors.Join(err, w.Close()), nil)
		return b.String()
	}
	for _, test := range []struct {
		name, encoding, body string
		ok                   bool
	}{
		{"window at the limit", Zstd, zstdOf(zstdWindowMaxBytes), true},
		{"larger window", Zstd, zstdOf(2 * zstdWindowMaxBytes), false},
		{"block at the limit", Snappy, snappyOf(snappyBlockMaxBytes), true},
		{"larger block", Snappy, snappyOf(2 * snappyBlockMaxBytes), false},
	} {
		d, err := newDecoding(test.encoding, strings.NewReader(test.body))
		checkIs(t, err, nil)
		got, err := io.ReadAll(d)
		if (err == nil) != test.ok || test.ok && string(got) != text {
			t.Errorf("%s: %d bytes, %v", test.name, len(got), err)
		}
		d.release()
		d.release() // a second one finds nothing
		check(t, test.name+": held", d.d == nil, true)
	}
}

func TestEarly_ErrorsOfDecoders(t *testing.T) {
	for err, want := range map[error]bool{io.ErrUnexpectedEOF: true, io.EOF: true, s2.ErrCorrupt: true, s2.ErrUnsupported: false, errStalled: false} {
		check(t, err.Error(), early(err), want)
	}
}
