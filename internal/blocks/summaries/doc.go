// Package summaries is a file beside a block that says of each chunk what it contributes to a window that covers it
// whole (series.Summary). A query reads it instead of the chunks. The input of a Writer is the summaries of a block,
// which a Decoder makes of chunks; a Reader returns them in the order of the chunks in the block's index. The package
// opens no files and knows no directories.
//
// All numbers are little-endian; a varint is one of encoding/binary, of zigzag form if it may be negative.
//
//	file     header | group* | table
//	header   "FSUM" version(1) 0(3) | block | table(8) groups(4) series(4) | crc32c(4) of the header before it
//	block    ULID(16) | index: bytes(8), its last 4 bytes | segments: number(4), bytes(8)
//	group    (uvarint(ref less the ref before) uvarint(len) summary*)* | crc32c(4) of the group before it
//	table    (ref(4) offset(8))* of the first series of each group | crc32c(4) of the table before it
//
// Series are in the order of their references in the index, which are the first numbers of a group and of the table.
// A series without any summary is absent. Another has one summary for each chunk, in the order of the index, or those
// of the chunk's parts, in which case each but the last one says cut:
//
//	summary  times?, 4(1) if cut, flags(1), and unless it is 0: no summary
//	         count      uvarint, with flag newCount; else as before
//	         gap        byte, with flag newCount; else as before
//	         changes    uvarint, with flag newChanges; else as before, and 0 with flag flat
//	         first      absent with flag same: the last value before
//	         last       absent with flag flat: first
//	         extremes   with flag extremes: min, max; else they are first and last, in their order
//	times    2(1) uvarint(second) uvarint(late) uvarint(end) uvarint(start), in ms; else as before
//	second   from the first sample to the second
//	late     from the last sample but one to the last
//	end      of a cut: from the last sample to the first full hour not before the first sample
//	start    of a cut: from there to the first sample of the next part
//	first    varint(less the last integer that was the last value of a summary)     integers
//	last     varint(less first)
//	extremes uvarint(the lesser of first and last, less min) uvarint(max less the greater of them)
//	first    n | bytes of first xor the last value before     with flag floats; n is a byte: the number of bytes
//	last     of each value, of the first one in its upper half. First and last have one n, as have min and max, which
//	extremes are xor the lesser and the greater of first and last
//
// "Before" means the summary before in the series; before the first, all are 0.
//
// A reader of a bucket needs three ranges of the object: OpenTable reads the header and the table, a few bytes for each
// 4 KiB, and a Cursor the group of a series. All are checked by themselves: a block's identity in the header, checksums
// in all three.
package summaries
