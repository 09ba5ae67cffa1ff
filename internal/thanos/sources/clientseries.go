package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/model/labels"
)

// elementBytesMax bounds one label set in a response.
const elementBytesMax = 16 << 20

// Series calls f with the labels of every matching series, in the order of the server,
// which need not be sorted. It decodes them as they arrive and stops at an error of f.
func (c *client) Series(ctx context.Context, matchers []*labels.Matcher, minMS, maxMS int64,
	f func(labels.Labels) error) (warnings []string, err error) {
	const path = "api/v1/series"
	resp, err := c.get(ctx, path, window(matchers, minMS, maxMS, 0))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return c.decodeResponse(resp, path, nil)
	}
	body := &elementReader{from: resp.Body}
	list := seriesList{body: body, json: json.NewDecoder(body), f: f}
	err = list.read()
	switch {
	case list.stop != nil:
		return nil, list.stop
	case body.err != nil:
		return nil, fmt.Errorf("%w: %s: %w", errUnavailable, path, body.err)
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", errBadResponse, path, err)
	case list.status != "success":
		return nil, fmt.Errorf("%w: %s: status is %q", errBadResponse, path, list.status)
	}
	return list.warnings, nil
}

var errElement = fmt.Errorf("a value exceeds %d bytes", elementBytesMax)

// elementReader limits the bytes that are read for one value.
type elementReader struct {
	from io.Reader
	read int   // bytes read for the current value
	err  error // of from
}

func (r *elementReader) Read(p []byte) (int, error) {
	if r.read > elementBytesMax {
		return 0, errElement
	}
	n, err := r.from.Read(p)
	r.read += n
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// seriesList reads a response whose data is a list of label sets.
type seriesList struct {
	body     *elementReader
	json     *json.Decoder
	f        func(labels.Labels) error
	stop     error // of f
	status   string
	warnings []string
}

func (l *seriesList) read() error {
	if err := l.expect('{'); err != nil {
		return err
	}
	for l.json.More() {
		name, err := l.json.Token()
		if err != nil {
			return err
		}
		switch name {
		case "data":
			err = l.data()
		case "status":
			err = l.value(&l.status)
		case "warnings":
			err = l.value(&l.warnings)
		default:
			err = l.value(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	return l.expect('}')
}

func (l *seriesList) data() error {
	if err := l.expect('['); err != nil {
		return err
	}
	for l.json.More() {
		var all map[string]string
		if err := l.value(&all); err != nil {
			return err
		}
		if all == nil {
			return errors.New("null in place of a label set")
		}
		lset, err := labelsOf(all)
		if err != nil {
			return err
		}
		if l.stop = l.f(lset); l.stop != nil {
			return l.stop
		}
	}
	return l.expect(']')
}

func (l *seriesList) value(into any) error {
	l.body.read = 0
	return l.json.Decode(into)
}

// expect reads a bracket.
func (l *seriesList) expect(want json.Delim) error {
	l.body.read = 0
	got, err := l.json.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && got != want {
		err = fmt.Errorf("%v in place of %v", got, want)
	}
	return err
}
