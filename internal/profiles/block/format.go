package block

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Names of a block's files.
const (
	IndexFile = "index"
	RowsFile  = "profiles.parquet"
)

const (
	magic         = "ferulaP\x01" // the last byte is the version
	sectionHeader = 32
	sectionMax    = 1 << 31
)

// sectionOptional is a bit in the kind of a section that readers ignore if they do not know the kind. A block with
// another unknown section was written by a newer version.
const sectionOptional = 1 << 31

// Kinds of sections of an index.
const (
	sectionMeta = iota + 1
	sectionSeries
	sectionSpans
	sectionChunks
	sectionIDs
	_ // not used
	sectionShared
	sectionEnd
	sectionParts       // list of the parts in sectionPartSymbols
	sectionPartSymbols // symbols of the datasets one after another, each compressed on its own
	sectionRowsSum     // xxhash64 of RowsFile as a whole, for Verify
)

// Compressions of a section.
const (
	plain = iota
	zstded
)

// Meta describes a block.
type Meta struct {
	ULID         [16]byte
	MinNS, MaxNS int64 // inclusive
	Rows         uint64
	Profiles     uint64
	Level        uint64
	Parents      [][16]byte // blocks from which the block was compacted, and which it replaces
	RowsBytes    uint64     // size of RowsFile
	TailAt       uint64     // offset in RowsFile of the end of the columns, where their metadata begins
	TailSum      uint64     // xxhash64 of RowsFile from TailAt to the end
	SpansBytes   uint64     // size of SpansFile; 0: there is none
}

// chunk is one row group: its number of rows, and the extent of each column in RowsFile.
type chunk struct {
	rows   int
	places [numColumns]extent
}

type extent struct {
	offset, size uint64
	sum          uint64 // xxhash64
}

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func newerf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", profiles.ErrNewer, fmt.Sprintf(format, args...))
}

// checkMagic checks the beginning of a file. want is the magic of this version of the format.
func checkMagic(name string, b []byte, want string) error {
	last := len(want) - 1
	switch {
	case len(b) < len(want) || string(b[:last]) != want[:last] || b[last] == 0:
		return corruptf("%s: not a file of a profile block", name)
	case b[last] > want[last]:
		return newerf("%s: version %d of its format", name, b[last])
	}
	return nil
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendMeta(dst []byte, m *Meta) []byte {
	dst = append(dst, m.ULID[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.MinNS))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.MaxNS))
	for _, v := range []uint64{m.Rows, m.Profiles, m.Level, 0, m.RowsBytes, m.TailAt} { // 0: not used
		dst = binary.AppendUvarint(dst, v)
	}
	dst = binary.LittleEndian.AppendUint64(dst, m.TailSum)
	dst = binary.AppendUvarint(dst, uint64(len(m.Parents)))
	for _, p := range m.Parents {
		dst = append(dst, p[:]...)
	}
	if m.SpansBytes == 0 {
		return dst
	}
	return binary.AppendUvarint(dst, m.SpansBytes)
}

// decoder reads numbers and strings from bytes. The first error is sticky.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = corruptf("cut short")
	}
	d.b = nil
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) text() []byte { return d.bytes(d.uvarint()) }

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a number of items. Each item takes at least size bytes: if fewer bytes remain,
// the number is invalid.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.fail()
		return 0
	}
	return int(n)
}

// number reads a number that must be less than below. what names the number in the error.
func (d *decoder) number(below int, what string) uint32 {
	v := d.uvarint()
	if v >= uint64(below) && d.err == nil {
		d.err = corruptf("%s %d is not below %d", what, v, below)
	}
	if d.err != nil {
		return 0
	}
	return uint32(v)
}

func (d *decoder) ulid() (id [16]byte) {
	copy(id[:], d.bytes(16))
	return id
}

func decodeMeta(b []byte) (m Meta, err error) {
	d := decoder{b: b}
	m.ULID = d.ulid()
	m.MinNS, m.MaxNS = int64(d.u64()), int64(d.u64())
	var unused uint64
	for _, v := range []*uint64{&m.Rows, &m.Profiles, &m.Level, &unused, &m.RowsBytes, &m.TailAt} {
		*v = d.uvarint()
	}
	m.TailSum = d.u64()
	for range d.count(16) {
		m.Parents = append(m.Parents, d.ulid())
	}
	if len(d.b) > 0 {
		m.SpansBytes = d.uvarint()
	}
	if d.err == nil && (m.Rows > 1<<32-1 || m.MinNS > m.MaxNS || m.TailAt > m.RowsBytes) {
		d.err = corruptf("%d rows between %d and %d", m.Rows, m.MinNS, m.MaxNS)
	}
	return m, d.err
}

func appendSeries(dst []byte, types []profiles.Type, series []Series) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(types)))
	for _, t := range types {
		for _, s := range []string{t.Name, t.SampleType, t.SampleUnit, t.PeriodType, t.PeriodUnit} {
			dst = appendText(dst, s)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(series)))
	for _, s := range series {
		dst = binary.AppendUvarint(dst, uint64(s.Type))
		dst = append(binary.AppendUvarint(dst, uint64(len(s.Plain))), s.Plain...)
	}
	return dst
}

func decodeSeries(b []byte) (types []profiles.Type, series []Series, err error) {
	d := decoder{b: b}
	var ofTypes [][]byte
	for range d.count(5) {
		var t profiles.Type
		for _, s := range []*string{&t.Name, &t.SampleType, &t.SampleUnit, &t.PeriodType, &t.PeriodUnit} {
			*s = string(d.text())
		}
		types, ofTypes = append(types, t), append(ofTypes, TypeLabels(t))
	}
	n := d.count(2)
	series = make([]Series, 0, n)
	for range n {
		number, plain := d.number(len(types), "type"), d.text()
		if d.err != nil {
			return nil, nil, d.err
		}
		if err := labelenc.Validate(plain); err != nil {
			return nil, nil, corruptf("series %d: %v", len(series), err)
		}
		series = append(series, NewSeries(number, ofTypes[number], plain))
	}
	return types, series, d.err
}

func appendSpans(dst []byte, spans []Span) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(spans)))
	for _, s := range spans {
		splits := uint64(0)
		if s.MultiRow {
			splits = 1
		}
		dst = appendText(dst, s.Dataset)
		for _, v := range []uint64{uint64(s.Type), splits, uint64(s.Hi - s.Lo), uint64(len(s.Series))} {
			dst = binary.AppendUvarint(dst, v)
		}
		var last uint32
		for _, ref := range s.Series {
			dst = binary.AppendUvarint(dst, uint64(ref-last))
			last = ref
		}
	}
	return dst
}

func decodeSpans(b []byte, types, series, rows int) ([]Span, error) {
	d := decoder{b: b}
	n := d.count(5)
	spans := make([]Span, 0, n)
	at := 0
	for range n {
		s := Span{Dataset: string(d.text()), Sorted: true, Lo: at}
		s.Type = int32(d.number(types, "type"))
		s.MultiRow = d.number(2, "flag") == 1
		s.Hi = at + int(d.number(rows-at+1, "rows of a span"))
		at = s.Hi
		var last uint64
		for range d.count(1) {
			last += d.uvarint()
			if last >= uint64(series) {
				return nil, corruptf("a span has series %d of %d", last, series)
			}
			s.Series = append(s.Series, uint32(last))
		}
		if d.err != nil {
			return nil, d.err
		}
		spans = append(spans, s)
	}
	if at != rows && d.err == nil {
		return nil, corruptf("spans have %d of %d rows", at, rows)
	}
	return spans, d.err
}

func appendChunks(dst []byte, chunks []chunk) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(chunks)))
	for _, c := range chunks {
		dst = binary.AppendUvarint(dst, uint64(c.rows))
		for _, p := range c.places {
			dst = binary.LittleEndian.AppendUint64(binary.AppendUvarint(binary.AppendUvarint(dst, p.offset), p.size), p.sum)
		}
	}
	return dst
}

// decodeChunks checks that each column is within the file, and that columns of fixed width
// have the size of their rows.
func decodeChunks(b []byte, rows int, fileBytes uint64) ([]chunk, error) {
	d := decoder{b: b}
	n := d.count(1 + 10*numColumns)
	chunks := make([]chunk, 0, n)
	for range n {
		c := chunk{rows: int(d.number(groupRows+1, "rows of a group"))}
		for i := range c.places {
			p := extent{offset: d.uvarint(), size: d.uvarint(), sum: d.u64()}
			if d.err != nil {
				return nil, d.err
			}
			if p.offset > fileBytes || p.size > fileBytes-p.offset {
				return nil, corruptf("column %s is outside the file", columnNames[i])
			}
			if w := widths[i]; w > 0 && p.size != uint64(w*c.rows) {
				return nil, corruptf("column %s has %d bytes for %d rows", columnNames[i], p.size, c.rows)
			}
			c.places[i] = p
		}
		if want := min(rows, groupRows); c.rows != want || want == 0 {
			return nil, corruptf("a group has %d rows", c.rows)
		}
		rows -= c.rows
		chunks = append(chunks, c)
	}
	if rows != 0 && d.err == nil {
		return nil, corruptf("groups lack %d rows", rows)
	}
	return chunks, d.err
}

func appendSymbols(dst []byte, s *Symbols) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s.Strings)))
	for _, t := range s.Strings {
		dst = appendText(dst, t)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Functions)))
	for _, f := range s.Functions {
		for _, v := range []uint64{uint64(f.Name), uint64(f.System), uint64(f.File), uint64(f.StartLine)} {
			dst = binary.AppendUvarint(dst, v)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Frames)))
	for _, f := range s.Frames {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(f.Function)), uint64(f.Line))
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Parents)))
	for i := 1; i < len(s.Parents); i++ {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(uint32(i)-s.Parents[i])), uint64(s.NodeFrame[i]))
	}
	return dst
}

// decode replaces s, whose slices it reuses.
func (s *Symbols) decode(b []byte) error {
	d := decoder{b: b}
	n := d.count(1)
	s.Strings = slices.Grow(s.Strings[:0], n)
	for range n {
		s.Strings = append(s.Strings, string(d.text()))
	}
	n = d.count(4)
	s.Functions = slices.Grow(s.Functions[:0], n)
	for range n {
		f := Function{Name: d.number(len(s.Strings), "text"), System: d.number(len(s.Strings), "text"),
			File: d.number(len(s.Strings), "text")}
		f.StartLine = int64(d.uvarint())
		s.Functions = append(s.Functions, f)
	}
	n = d.count(2)
	s.Frames = slices.Grow(s.Frames[:0], n)
	for range n {
		f := Frame{Function: d.number(len(s.Functions), "function")}
		f.Line = d.number(1<<32-1, "line")
		s.Frames = append(s.Frames, f)
	}
	stacks := d.uvarint()
	if d.err == nil && (stacks == 0 || stacks-1 > uint64(len(d.b)/2)) {
		return corruptf("a tree of %d stacks", stacks)
	}
	if d.err != nil {
		return d.err
	}
	n = int(stacks)
	s.Parents, s.NodeFrame = slices.Grow(s.Parents[:0], n)[:n], slices.Grow(s.NodeFrame[:0], n)[:n]
	s.Parents[0], s.NodeFrame[0] = 0, 0
	for i := 1; i < n && d.err == nil; i++ {
		up := d.number(i+1, "parent")
		if up == 0 && d.err == nil {
			return corruptf("stack %d is its own parent", i)
		}
		s.Parents[i], s.NodeFrame[i] = uint32(i)-up, d.number(len(s.Frames), "frame")
	}
	return d.err
}

func appendKeys(dst []byte, keys []Key) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(keys)))
	for _, k := range keys {
		dst = binary.LittleEndian.AppendUint64(append(dst, k.ID[:]...), uint64(k.TimeNS))
	}
	return dst
}

func decodeKeys(b []byte) (keys []Key, err error) {
	d := decoder{b: b}
	for range d.count(24) {
		keys = append(keys, Key{ID: d.ulid(), TimeNS: int64(d.u64())})
	}
	return keys, d.err
}

// appendSection appends a section: header and body.
//
//	kind u32 | compression u32 | stored u64 | plain u64 | xxhash64 of the stored bytes
func appendSection(dst []byte, kind, compression uint32, body []byte) ([]byte, error) {
	stored := body
	if compression == zstded {
		var err error
		if stored, err = appendCompressed(nil, body); err != nil {
			return nil, err
		}
	}
	return append(appendHeader(dst, kind, compression, len(stored), len(body), xxhash.Sum64(stored)), stored...), nil
}

func appendHeader(dst []byte, kind, compression uint32, stored, body int, sum uint64) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(le.AppendUint32(dst, kind), compression)
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(dst, uint64(stored)), uint64(body)), sum)
}

// appendPlainHeader appends the header of a section that is not compressed, and whose body is in pieces.
func appendPlainHeader(dst []byte, kind uint32, pieces [][]byte) []byte {
	size, sum := 0, xxhash.New()
	for _, piece := range pieces {
		size += len(piece)
		_, _ = sum.Write(piece) // never fails
	}
	return appendHeader(dst, kind, plain, size, size, sum.Sum64())
}

type section struct {
	compression uint32
	plain       uint64
	sum         uint64
	stored      []byte
}

// firstSection returns the meta section of an index, which a writer puts first.
func firstSection(b []byte) (section, error) {
	if err := checkMagic(IndexFile, b, magic); err != nil {
		return section{}, err
	}
	kind, s, _, err := cutSection(IndexFile, b[len(magic):])
	switch {
	case err != nil:
		return section{}, err
	case kind != sectionMeta:
		return section{}, corruptf("index: section %d is where meta should be", kind)
	case s.compression > zstded:
		return section{}, newerf("index: compression %d of section %d", s.compression, kind)
	}
	return s, nil
}

// cutSection cuts the first section off the bytes of a file.
func cutSection(name string, b []byte) (kind uint32, s section, rest []byte, err error) {
	if len(b) < sectionHeader {
		return 0, s, nil, corruptf("%s: cut short", name)
	}
	le := binary.LittleEndian
	kind, s = le.Uint32(b), section{compression: le.Uint32(b[4:]), plain: le.Uint64(b[16:]), sum: le.Uint64(b[24:])}
	size := le.Uint64(b[8:])
	if b = b[sectionHeader:]; size > uint64(len(b)) || s.plain > sectionMax {
		return 0, s, nil, corruptf("%s: section %d is longer than the file", name, kind)
	}
	s.stored = b[:size]
	return kind, s, b[size:], nil
}

// sections returns the sections of an index without reading their bodies.
func sections(b []byte) (map[uint32]section, error) {
	return sectionsOf(IndexFile, b, magic, sectionRowsSum)
}

// sectionsOf returns the sections of a file that begins with a magic. greatest is the last kind of section that this
// version knows.
func sectionsOf(name string, b []byte, magic string, greatest uint32) (map[uint32]section, error) {
	if err := checkMagic(name, b, magic); err != nil {
		return nil, err
	}
	found := map[uint32]section{}
	for b = b[len(magic):]; ; {
		kind, s, rest, err := cutSection(name, b)
		switch {
		case err != nil:
			return nil, err
		case kind == sectionEnd:
			return found, nil
		case kind > greatest && kind&sectionOptional == 0:
			return nil, newerf("%s: section %d", name, kind)
		case s.compression > zstded && kind <= greatest:
			return nil, newerf("%s: compression %d of section %d", name, s.compression, kind)
		}
		found[kind], b = s, rest
	}
}

// blockRatio is the maximum number of decompressed bytes for one compressed byte: a block of zstd has at least 4
// bytes, and decompresses to 128 KiB at most.
const blockRatio = 128 << 10 / 4

// usualBytes returns a size that most sections of this stored size do not exceed when they are decompressed.
func usualBytes(stored int) uint64 { return 64*uint64(stored) + 1024 }

// open verifies a section and returns its uncompressed bytes, which may alias the index.
func (s section) open(kind int) ([]byte, error) { return s.openIn(nil, kind) }

// openIn is open with the memory of dst, if its capacity suffices.
func (s section) openIn(dst []byte, kind int) ([]byte, error) {
	if xxhash.Sum64(s.stored) != s.sum {
		return nil, corruptf("index: section %d: wrong checksum", kind)
	}
	if s.compression == plain {
		return s.stored, nil
	}
	stored := uint64(len(s.stored))
	if s.plain > blockRatio*stored {
		return nil, corruptf("index: section %d: %d bytes cannot have %d when decompressed", kind, stored, s.plain)
	}
	usual := min(s.plain, usualBytes(len(s.stored))) // the first attempt allocates only this: s.plain may be wrong
	b, err := decompressIn(dst, s.stored, int(usual))
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) && usual < s.plain {
		b, err = decompressIn(dst, s.stored, int(s.plain))
	}
	if err != nil || uint64(len(b)) != s.plain {
		return nil, corruptf("index: section %d: %d bytes want %d: %v", kind, len(b), s.plain, err)
	}
	return b, nil
}
