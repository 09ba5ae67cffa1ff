package httpapi_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/promjson"
)

// errColumns is the error of bytes that are no body in columns, or not a whole one.
var errColumns = errors.New("invalid columns")

// decodedColumns is a body in columns: docs/formats/columns.md.
type decodedColumns struct {
	start, step int64
	steps       uint32
	labels      []json.RawMessage
	points      [][]promql.FPoint // of each label set
	text        string
	texts       int // sections of text
}

// decodeColumns decodes a whole body. It checks everything that the format promises.
func decodeColumns(body []byte) (c decodedColumns, err error) {
	rest, ok := strings.CutPrefix(string(body), "FERULAC1")
	if !ok {
		return c, fmt.Errorf("%w: magic", errColumns)
	}
	for last := uint32(0); last != 4; {
		kind, content, after, ok := cutSection(rest)
		if !ok || kind < last || (last == 0 && kind != 1) || (kind == last && kind == 1) || (kind == 4 && last != 3) {
			return c, fmt.Errorf("%w: section %d after %d", errColumns, kind, last)
		}
		switch kind {
		case 1:
			err = c.grid(content)
		case 2:
			err = c.series(content)
		case 3:
			c.text += content
			c.texts++
		case 4:
			err = c.end(content, after)
		default:
			err = fmt.Errorf("%w: kind %d", errColumns, kind)
		}
		if err != nil {
			return c, err
		}
		last, rest = kind, after
	}
	return c, nil
}

func cutSection(b string) (kind uint32, content, after string, ok bool) {
	if len(b) < 8 {
		return 0, "", "", false
	}
	n := uint64(u32(b, 4))
	padded := (n + 7) &^ 7
	if uint64(len(b)-8) < padded || strings.Trim(b[8+n:8+padded], "\x00") != "" {
		return 0, "", "", false
	}
	return u32(b, 0), b[8 : 8+n], b[8+padded:], true
}

func u32(b string, at int) uint32 { return binary.LittleEndian.Uint32([]byte(b[at : at+4])) }
func u64(b string, at int) uint64 { return binary.LittleEndian.Uint64([]byte(b[at : at+8])) }

func (c *decodedColumns) grid(b string) error {
	if len(b) != 24 || u32(b, 20) != 0 {
		return fmt.Errorf("%w: grid of %d bytes", errColumns, len(b))
	}
	c.start, c.step, c.steps = int64(u64(b, 0)), int64(u64(b, 8)), u32(b, 16)
	return nil
}

func (c *decodedColumns) series(b string) error {
	if len(b) < 16 {
		return fmt.Errorf("%w: series of %d bytes", errColumns, len(b))
	}
	series, runs, samples, text := uint64(u32(b, 0)), uint64(u32(b, 4)), uint64(u32(b, 8)), uint64(u32(b, 12))
	countsAt := (16 + text + 7) &^ 7
	runsAt := countsAt + 4*series
	samplesAt := (runsAt + 8*runs + 7) &^ 7
	if samplesAt+8*samples != uint64(len(b)) {
		return fmt.Errorf("%w: %d series, %d runs, %d samples, %d bytes of text are not %d bytes", errColumns, series, runs, samples, text, len(b))
	}
	var sets []json.RawMessage
	if err := json.Unmarshal([]byte(b[16:16+text]), &sets); err != nil || uint64(len(sets)) != series {
		return fmt.Errorf("%w: %d label sets of %d series, %w", errColumns, len(sets), series, err)
	}
	run, sample := uint64(0), uint64(0)
	for i := range series {
		var points []promql.FPoint
		next := uint64(0)
		for range u32(b, int(countsAt+4*i)) {
			if run == runs {
				return fmt.Errorf("%w: more than %d runs", errColumns, runs)
			}
			first, n := uint64(u32(b, int(runsAt+8*run))), uint64(u32(b, int(runsAt+8*run+4)))
			if first < next || n == 0 || first+n > uint64(c.steps) || sample+n > samples {
				return fmt.Errorf("%w: run of %d at %d", errColumns, n, first)
			}
			for k := range n {
				v := math.Float64frombits(u64(b, int(samplesAt+8*(sample+k))))
				points = append(points, promql.FPoint{T: c.start + int64(first+k)*c.step, F: v})
			}
			next, run, sample = first+n, run+1, sample+n
		}
		c.labels, c.points = append(c.labels, sets[i]), append(c.points, points)
	}
	if run != runs || sample != samples {
		return fmt.Errorf("%w: %d of %d runs, %d of %d samples", errColumns, run, runs, sample, samples)
	}
	return nil
}

func (c *decodedColumns) end(b, after string) error {
	samples := 0
	for _, points := range c.points {
		samples += len(points)
	}
	if len(b) != 16 || after != "" || u64(b, 0) != uint64(len(c.points)) || u64(b, 8) != uint64(samples) {
		return fmt.Errorf("%w: end of %d series and %d samples", errColumns, len(c.points), samples)
	}
	return nil
}

// asJSON returns the JSON of the same response: the text with the series in its list.
func (c *decodedColumns) asJSON() string {
	const list = `"result":[`
	before, after, _ := strings.Cut(c.text, list)
	b := []byte(before + list)
	for i, points := range c.points {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `{"metric":`...), c.labels[i]...)
		if len(points) > 0 {
			b = append(promjson.AppendPoints(append(b, `,"values":[`...), nil, points), ']')
		}
		b = append(b, '}')
	}
	return string(b) + after
}
