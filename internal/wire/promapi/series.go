package promapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/jsontree"
)

// elementBytesMax bounds one label set in a response.
const elementBytesMax = 16 << 20

// Series calls f with the labels of every matching series, in the order of the server,
// which need not be sorted. It decodes them as they arrive and stops at an error of f.
func (c *Client) Series(ctx context.Context, matchers []*labels.Matcher, minMS, maxMS int64, f func(labels.Labels) error) (warnings []string, err error) {
	const path = "api/v1/series"
	resp, err := c.get(ctx, path, window(matchers, minMS, maxMS, 0))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		_, _, err := c.decodeResponse(resp, path)
		return nil, err
	}
	values := &valueReader{from: bufio.NewReaderSize(resp.Body, 64<<10)}
	status, warnings, stop, err := values.list(f)
	switch {
	case stop != nil:
		return nil, stop
	case errors.Is(err, errSyntax), errors.Is(err, io.EOF), errors.Is(err, ErrBadResponse):
		return nil, fmt.Errorf("%w: %s: %w", ErrBadResponse, path, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, path, err)
	case status != "success":
		return nil, fmt.Errorf("%w: %s: status is %q", ErrBadResponse, path, status)
	}
	return warnings, nil
}

var errSyntax = errors.New("not a JSON list")

// valueReader splits a stream of JSON into values and buffers one at a time. jsontree
// validates the values.
type valueReader struct {
	from *bufio.Reader
	text []byte // the last value
}

// list reads a response whose data is a list of label sets. stop is the error of f.
func (v *valueReader) list(f func(labels.Labels) error) (status string, warnings []string, stop, err error) {
	err = v.sequence('{', '}', func() error {
		name, err := v.value()
		if err != nil {
			return err
		}
		if err := v.expect(':'); err != nil {
			return err
		}
		if name.Text() == "data" {
			return v.sequence('[', ']', func() error {
				set, err := v.value()
				if err != nil {
					return err
				}
				if len(set.Raw) == 0 || set.Raw[0] != '{' {
					return fmt.Errorf("%w: %.20q is not a label set", errSyntax, set.Raw)
				}
				for _, m := range set.Members() {
					if len(m.Value.Raw) == 0 || m.Value.Raw[0] != '"' {
						return fmt.Errorf("%w: the value of label %.100s is not a string", errSyntax, m.Name)
					}
				}
				lset, err := labelsOf(set)
				if err == nil {
					stop = f(lset)
					err = stop
				}
				return err
			})
		}
		member, err := v.value()
		switch name.Text() {
		case "status":
			status = member.Text()
		case "warnings":
			warnings = texts(member)
		}
		return err
	})
	return status, warnings, stop, err
}

// sequence reads from an opening to a closing bracket and calls element for each element.
func (v *valueReader) sequence(open, closing byte, element func() error) error {
	if err := v.expect(open); err != nil {
		return err
	}
	for n := 0; ; n++ {
		c, err := v.next()
		if err != nil {
			return err
		}
		switch {
		case c == closing:
			return nil
		case n > 0 && c != ',':
			return fmt.Errorf("%w: %q in place of a comma", errSyntax, c)
		case n == 0:
			err = v.from.UnreadByte()
		}
		if err == nil {
			err = element()
		}
		if err != nil {
			return err
		}
	}
}

// next returns the next byte that is not white space.
func (v *valueReader) next() (byte, error) {
	for {
		c, err := v.from.ReadByte()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
			return 0, fmt.Errorf("%w: %w", errSyntax, err)
		}
		if err != nil || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c, err
		}
	}
}

func (v *valueReader) expect(want byte) error {
	c, err := v.next()
	if err == nil && c != want {
		err = fmt.Errorf("%w: %q in place of %q", errSyntax, c, want)
	}
	return err
}

// value reads one value. It is valid until the next call.
func (v *valueReader) value() (jsontree.Value, error) {
	c, err := v.next()
	if err != nil {
		return jsontree.Value{}, err
	}
	v.text = append(v.text[:0], c)
	depth, quoted, escaped := 0, false, false
	for {
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if depth <= 0 && !quoted && (c == '"' || c == '}' || c == ']' || v.scalarEnds()) {
			break
		}
		if len(v.text) > elementBytesMax {
			return jsontree.Value{}, fmt.Errorf("%w: a value exceeds %d bytes", errSyntax, elementBytesMax)
		}
		if c, err = v.from.ReadByte(); errors.Is(err, io.EOF) {
			return jsontree.Value{}, fmt.Errorf("%w: %w", errSyntax, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return jsontree.Value{}, err
		}
		v.text = append(v.text, c)
	}
	parsed, err := jsontree.Parse(v.text)
	if err != nil {
		return parsed, fmt.Errorf("%w: %w", errSyntax, err)
	}
	return parsed, nil
}

// scalarEnds reports whether a number or a word ends at the next byte.
func (v *valueReader) scalarEnds() bool {
	c, err := v.from.Peek(1)
	return err != nil || c[0] == ',' || c[0] == '}' || c[0] == ']' || c[0] == ' ' || c[0] == '\n' || c[0] == '\r' || c[0] == '\t'
}
