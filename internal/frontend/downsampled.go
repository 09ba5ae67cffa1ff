package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
)

// coarser are the resolutions of downsampled data, as values of resolutionParam.
var coarser = [...]struct {
	value string
	ms    int64
}{{"5m", 300_000}, {"1h", 3_600_000}}

// resolutionParam is Thanos' parameter for the coarsest resolution that a query accepts.
const resolutionParam = "max_source_resolution"

// repeatsDownsampled reports whether parts without points are requested again with coarser data. That needs
// Options.RequestDownsampled and a request with max_source_resolution=auto. With auto the downstream chooses the
// resolution by the step alone, and the data of that resolution may have been deleted.
func (f *Frontend) repeatsDownsampled(q query) bool {
	return f.opts.RequestDownsampled && q.params.Get(resolutionParam) == "auto"
}

// repeatDownsampled requests an open part again with coarser data, until its response has
// points. Responses without points are kept for their warnings.
func (f *Frontend) repeatDownsampled(ctx context.Context, q query, o *openedPart) error {
	for _, resolution := range coarser {
		if o.resp.Status != http.StatusOK {
			return nil
		}
		if resolution.ms <= o.StepMS/5 {
			continue // auto accepts resolutions up to a fifth of the step, so the first request has included this one
		}
		read, empty, err := readEmpty(o.body)
		if err != nil {
			return err
		}
		if !empty {
			o.body = peekedBody{io.MultiReader(bytes.NewReader(read), o.body), o.body}
			return nil
		}
		o.empty, o.noStore = append(o.empty, read), o.noStore || o.resp.NoStore()
		_ = o.body.Close() // it was read to its end
		o.body = nil
		again := q.withRange(o.StartMS, o.EndMS)
		again.params.Set(resolutionParam, resolution.value)
		resp, err := f.opts.Downstream.Open(ctx, again.request(f.opts.RangeRetries))
		if err != nil {
			return err
		}
		o.resp, o.body = resp, resp.Body
	}
	return nil
}

// peekedBody is a body whose beginning was read.
type peekedBody struct {
	io.Reader
	io.Closer
}

// emptyMaxBytes: a response of at least this length counts as one with points. A response without points has little
// more than its warnings.
const emptyMaxBytes = 64 << 10

// readEmpty reads the beginning of a response, and reports whether the result is a matrix without series. It reads an
// empty response to its end. read has the bytes read.
func readEmpty(body io.Reader) (read []byte, empty bool, err error) {
	result := []byte(`"result":[`)
	read = make([]byte, 0, 4<<10)
	for len(read) < emptyMaxBytes {
		if len(read) == cap(read) {
			read = append(make([]byte, 0, 4*cap(read)), read...)
		}
		n, err := body.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		_, after, found := bytes.Cut(read, result)
		none := found && len(after) > 0 && after[0] == ']'
		switch {
		case len(after) > 0 && !none:
			return read, false, nil
		case errors.Is(err, io.EOF):
			return read, none, nil
		case err != nil:
			return nil, false, err
		}
	}
	return read, false, nil
}
