package export

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/promjson"
)

// ErrInexpressible is returned for data that a format cannot express.
var ErrInexpressible = errors.New("not expressible in the format")

// openMetricsEncoder writes OpenMetrics 1.0 text, one line per sample:
//
//	up{job="node"} 1 1700000000.000
//
// In this format the samples of a family must be adjacent, so the part file of a time window is not
// text yet. It is a list of series, sorted by name and then by labels. join merges the lists of all
// windows:
//
//	series  uvarint(len) name  uvarint(len) labels  piece*  0
//	piece   uvarint(len > 0) text
//
// Series arrive in label order, which is the order of names only if no label name sorts before
// __name__. Otherwise a part is sorted once it is complete. Text that was written to standard
// output cannot be sorted any more.
type openMetricsEncoder struct {
	w        *bufio.Writer
	part     bool   // write a part file instead of text
	last     []byte // name of the previous family
	any      bool   // a series was written
	unsorted bool   // names were not in order
	skipHist bool   // leave native histograms out
	skipped  int64  // samples that are not in the result
	prefix   []byte
	piece    []byte
}

const pieceBytes = 32 << 10

func (e *openMetricsEncoder) add(s *samples) (err error) {
	name := labelenc.Value(s.labels, "__name__")
	if len(name) == 0 {
		return fmt.Errorf("%w: OpenMetrics requires a metric name", ErrInexpressible)
	}
	if e.any && bytes.Compare(name, e.last) < 0 {
		if e.unsorted = true; !e.part {
			return fmt.Errorf("%w: a label name sorts before __name__, such as one with a capital letter, so samples of a "+
				"family are not adjacent: write to a file", ErrInexpressible)
		}
	}
	e.any, e.last = true, append(e.last[:0], name...)
	if e.prefix, err = appendExposed(e.prefix[:0], name, s.labels); err != nil {
		return err
	}
	if e.part {
		head := appendPrefixed(e.piece[:0], name)
		if _, err := e.w.Write(appendPrefixed(head, s.labels)); err != nil {
			return err
		}
		e.piece = head[:0]
	}
	for {
		more, err := s.next()
		switch {
		case err != nil:
			return err
		case !more:
			return e.flush(true)
		case s.hist != nil && !e.skipHist:
			return fmt.Errorf("%w: OpenMetrics 1.0 has no native histograms: use another format, or --skip-histograms",
				ErrInexpressible)
		case s.hist != nil || s.stale():
			e.skipped++
			continue
		}
		e.piece = promjson.AppendFloat(append(e.piece, e.prefix...), s.value)
		e.piece = append(promjson.AppendTimestamp(append(e.piece, ' '), s.time), '\n')
		if len(e.piece) >= pieceBytes {
			if err := e.flush(false); err != nil {
				return err
			}
		}
	}
}

// flush writes the current piece; last marks the last piece of a series.
func (e *openMetricsEncoder) flush(last bool) error {
	if e.part && len(e.piece) > 0 {
		var head [binary.MaxVarintLen64]byte
		if _, err := e.w.Write(binary.AppendUvarint(head[:0], uint64(len(e.piece)))); err != nil {
			return err
		}
	}
	if e.part && last {
		e.piece = append(e.piece, 0)
	}
	_, err := e.w.Write(e.piece)
	e.piece = e.piece[:0]
	return err
}

const openMetricsEnd = "# EOF\n"

func (e *openMetricsEncoder) close() error {
	if e.part {
		return nil
	}
	_, err := e.w.WriteString(openMetricsEnd)
	return err
}

func (e *openMetricsEncoder) skippedSamples() int64 { return e.skipped }

func appendPrefixed(dst, text []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// appendExposed appends the beginning of the lines of a series: metric name and labels. UTF-8
// names that are not valid legacy names are quoted, and such a metric name is written within the
// braces.
func appendExposed(dst, metric, labels []byte) ([]byte, error) {
	first := true
	brace := func() {
		if first {
			dst = append(dst, '{')
		} else {
			dst = append(dst, ',')
		}
		first = false
	}
	if model.LegacyValidation.IsValidMetricName(string(metric)) {
		dst = append(dst, metric...)
	} else {
		brace()
		dst = appendQuoted(dst, metric)
	}
	for len(labels) > 0 {
		name, value, rest, err := labelenc.Next(labels)
		if err != nil {
			return dst, err
		}
		labels = rest
		if string(name) == "__name__" {
			continue
		}
		brace()
		if model.LegacyValidation.IsValidLabelName(string(name)) {
			dst = append(dst, name...)
		} else {
			dst = appendQuoted(dst, name)
		}
		dst = appendQuoted(append(dst, '='), value)
	}
	if !first {
		dst = append(dst, '}')
	}
	return append(dst, ' '), nil
}

func appendQuoted(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch c {
		case '\\', '"':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// partReader reads a part of openMetricsEncoder.
type partReader struct {
	from         *bufio.Reader
	name, labels []byte
	piece        []byte
}

// next reads the head of the next series. It returns io.EOF at the end.
func (p *partReader) next() (err error) {
	if _, err = p.from.Peek(1); err != nil {
		return err // io.EOF if there is no byte
	}
	if p.name, err = p.text(p.name); err == nil {
		p.labels, err = p.text(p.labels)
	}
	return err
}

// text reads a text and its length to dst.
func (p *partReader) text(dst []byte) ([]byte, error) {
	size, err := p.size()
	if err == nil && size > 1<<30 {
		err = fmt.Errorf("%w: a part file has a length prefix of %d bytes", ErrCorrupt, size)
	}
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst[:0], int(size))[:size]
	_, err = io.ReadFull(p.from, dst)
	return dst, cutShort(err)
}

func (p *partReader) size() (uint64, error) {
	size, err := binary.ReadUvarint(p.from)
	return size, cutShort(err)
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *partReader) compare(q *partReader) int {
	if c := bytes.Compare(p.name, q.name); c != 0 {
		return c
	}
	return labelenc.Compare(p.labels, q.labels)
}

// sort sorts a complete part whose label sets were not sorted by name. It holds the labels
// of its series in memory.
func (e *openMetricsEncoder) sort(f *os.File, size int64) (err error) {
	if !e.unsorted {
		return nil
	}
	type entry struct {
		partReader
		from, to int64
	}
	var entries []entry
	part := io.NewSectionReader(f, 0, size)
	p := partReader{from: bufio.NewReaderSize(part, bufferBytes)}
	at := func() int64 {
		read, _ := part.Seek(0, io.SeekCurrent) // of a position in memory
		return read - int64(p.from.Buffered())
	}
	for {
		from := at()
		if err := p.next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		for p.piece = append(p.piece, 0); len(p.piece) > 0; {
			if p.piece, err = p.text(p.piece); err != nil {
				return err
			}
		}
		entries = append(entries, entry{partReader{name: slices.Clone(p.name), labels: slices.Clone(p.labels)}, from, at()})
	}
	slices.SortFunc(entries, func(a, b entry) int { return a.compare(&b.partReader) })
	sorted, err := os.Create(f.Name() + ".sorted")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sorted.Close(), os.Remove(sorted.Name())) }()
	w := bufio.NewWriterSize(sorted, bufferBytes)
	for _, one := range entries {
		if _, err := io.Copy(w, io.NewSectionReader(f, one.from, one.to-one.from)); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(sorted, 0, size))
	return err
}

// mergeMax is the limit of parts open at the same time.
const mergeMax = 64

// joinOpenMetrics merges parts to text. If there are more than mergeMax, it first merges them
// to longer parts in dir.
func joinOpenMetrics(ctx context.Context, w *bufio.Writer, parts []string, dir string) error {
	for round := 0; len(parts) > mergeMax; round++ {
		var longer []string
		for i := 0; i < len(parts); i += mergeMax {
			path := fmt.Sprintf("%s/merge-%d-%d.tmp", dir, round, i)
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			to := bufio.NewWriterSize(f, bufferBytes)
			err = mergeParts(ctx, to, parts[i:min(i+mergeMax, len(parts))], false)
			if err := errors.Join(err, to.Flush(), f.Close()); err != nil {
				return err
			}
			longer = append(longer, path)
		}
		parts = longer
	}
	if err := mergeParts(ctx, w, parts, true); err != nil {
		return err
	}
	_, err := w.WriteString(openMetricsEnd)
	return err
}

// mergeParts merges parts, which must be in time order. The result is text if text is set, else one part.
func mergeParts(ctx context.Context, w *bufio.Writer, paths []string, text bool) error {
	var open []*partReader
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		//lint:ignore errcheck the file was only read
		defer f.Close()
		p := &partReader{from: bufio.NewReaderSize(f, 64<<10)}
		if err := p.next(); errors.Is(err, io.EOF) {
			continue
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		open = append(open, p)
	}
	enc := &openMetricsEncoder{w: w, part: !text}
	for len(open) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		least := open[0]
		for _, p := range open[1:] {
			if p.compare(least) < 0 {
				least = p
			}
		}
		name, labels := slices.Clone(least.name), slices.Clone(least.labels)
		if !text {
			if _, err := w.Write(appendPrefixed(appendPrefixed(nil, name), labels)); err != nil {
				return err
			}
		}
		same := partReader{name: name, labels: labels}
		for i := 0; i < len(open); i++ {
			if open[i].compare(&same) != 0 {
				continue
			}
			if err := enc.copy(open[i]); err != nil {
				return err
			}
			if err := open[i].next(); errors.Is(err, io.EOF) {
				open = slices.Delete(open, i, i+1)
				i--
			} else if err != nil {
				return err
			}
		}
		if err := enc.flush(true); err != nil {
			return err
		}
	}
	return nil
}

// copy writes the pieces of the current series of p, without the 0 that ends the series.
func (e *openMetricsEncoder) copy(p *partReader) (err error) {
	for {
		if p.piece, err = p.text(p.piece); err != nil || len(p.piece) == 0 {
			return err
		}
		e.piece = append(e.piece, p.piece...)
		if err := e.flush(false); err != nil {
			return err
		}
	}
}
