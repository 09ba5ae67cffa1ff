package summaries

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/ferula-io/ferula/internal/series"
)

// Writer writes a file. It holds the summaries of one series, one group, and the table.
type Writer struct {
	to      io.WriteSeeker
	buf     *bufio.Writer
	header  header
	at      uint64 // offset behind the last group
	group   []byte
	first   uint64 // the first reference of the group
	grouped uint64 // the last reference of the group
	ref     uint64 // of the current series
	began   bool   // there is a current series
	section []byte // its summaries
	some    bool   // one of them is present
	before  before
	table   []byte
}

// NewWriter begins a file. Until Close the file is not valid.
func NewWriter(to io.WriteSeeker, block Block) (*Writer, error) {
	w := &Writer{to: to, buf: bufio.NewWriterSize(to, 64<<10), header: header{Block: block}, at: headerBytes}
	_, err := w.buf.Write(make([]byte, headerBytes))
	return w, err
}

// Series begins the next series, by its reference in the index. References ascend.
func (w *Writer) Series(ref uint64) error {
	if w.began && ref <= w.ref || ref > math.MaxUint32 {
		return fmt.Errorf("summaries of series %d after series %d", ref, w.ref)
	}
	err := w.endSeries()
	w.began, w.ref, w.section, w.some, w.before = true, ref, w.section[:0], false, before{}
	return err
}

// Chunk adds the summary of the next chunk of the series. A summary without samples means that there is none.
func (w *Writer) Chunk(s series.Summary) {
	w.part(part{Summary: s}, s.Gap)
}

// part adds the summary of a part of a chunk, or of all of it, with the gap of the chunk.
func (w *Writer) part(p part, gap byte) {
	p.Gap = gap
	w.section = w.before.append(w.section, p)
	w.some = w.some || p.Count > 0
}

func (w *Writer) endSeries() error {
	if !w.some || len(w.section) > sectionMax {
		return nil
	}
	if len(w.group) == 0 {
		w.first, w.grouped = w.ref, w.ref
	}
	w.group = binary.AppendUvarint(w.group, w.ref-w.grouped)
	w.group = binary.AppendUvarint(w.group, uint64(len(w.section)))
	w.group = append(w.group, w.section...)
	w.grouped = w.ref
	w.header.Series++
	if len(w.group) < groupBytes {
		return nil
	}
	return w.endGroup()
}

func (w *Writer) endGroup() error {
	if len(w.group) == 0 {
		return nil
	}
	w.table = binary.LittleEndian.AppendUint32(w.table, uint32(w.first))
	w.table = binary.LittleEndian.AppendUint64(w.table, w.at)
	w.group = appendChecksum(w.group, 0)
	n, err := w.buf.Write(w.group)
	w.at += uint64(n)
	w.group = w.group[:0]
	return err
}

// Close completes the file. It does not close what it was written to.
func (w *Writer) Close() error {
	if err := w.endSeries(); err != nil {
		return err
	}
	if err := w.endGroup(); err != nil {
		return err
	}
	w.header.TableAt, w.header.Groups = w.at, uint32(len(w.table)/entryBytes)
	w.table = appendChecksum(w.table, 0)
	if _, err := w.buf.Write(w.table); err != nil {
		return err
	}
	if err := w.buf.Flush(); err != nil {
		return err
	}
	if _, err := w.to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := w.to.Write(w.header.append(nil))
	return err
}

// Bytes returns the length of the file after Close.
func (w *Writer) Bytes() int64 { return int64(w.at) + int64(w.header.Groups)*entryBytes + crc32.Size }
