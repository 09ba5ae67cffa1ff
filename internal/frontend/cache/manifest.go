package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
)

// formatVersion is in the keys and in the manifests. So processes with different format versions
// that share a server do not see each other's entries.
const formatVersion = 1

const (
	manifestMagic    = "FQC"
	manifestExtents  = 64      // most extents that a manifest may declare
	manifestPartsMax = 1 << 16 // of one extent
)

// Why a manifest is not used.
var (
	errCorrupt   = errors.New("corrupt")
	errVersion   = errors.New("written by another version")
	errCollision = errors.New("another key with the same hash")
)

// partRef is a part as its manifest describes it.
type partRef struct {
	storedBytes int // compressed bytes, with the header
	rawBytes    int // bytes of the response
}

// extent is one stored response.
type extent struct {
	id             uint64
	startMS, endMS int64 // inclusive
	stepMS         int64 // 0: no fixed step
	writtenMS      int64 // from which the TTL counts
	parts          []partRef
	inline         []byte // the only part, if the manifest holds it; shared, immutable
}

func (e *extent) storedBytes() (n int64) {
	for _, p := range e.parts {
		n += int64(p.storedBytes)
	}
	return n
}

func (e *extent) rawBytes() (n int64) {
	for _, p := range e.parts {
		n += int64(p.rawBytes)
	}
	return n
}

func (e *extent) overlaps(startMS, endMS int64) bool { return e.startMS <= endMS && e.endMS >= startMS }

// valid reports whether the extent has not expired. An extent written in the future, which exists
// after a clock was set back, is valid only if it is less than the TTL ahead.
func (e *extent) valid(now time.Time, ttl time.Duration) bool {
	age := now.UnixMilli() - e.writtenMS
	return ttl <= 0 || (age < ttl.Milliseconds() && -age < ttl.Milliseconds())
}

// storeKey is the manifest's key in the store: short, without spaces, and the same in all
// processes. It is a cryptographic hash of the entry's key, because users control the text of that
// key.
func storeKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	var b [2 * 16]byte
	hex.Encode(b[:], sum[:16])
	return "fqc" + strconv.Itoa(formatVersion) + ":" + string(b[:])
}

// partKey is the store key of an extent's part in the entry whose manifest is at base.
func partKey(base string, id uint64, number int) string {
	b := make([]byte, 0, len(base)+24)
	b = append(append(b, base...), ':')
	b = strconv.AppendUint(b, id, 16)
	b = strconv.AppendInt(append(b, ':'), int64(number), 10)
	return string(b)
}

// appendManifest appends to dst the manifest of the entry under key.
func appendManifest(dst []byte, key string, extents []extent) []byte {
	begin := len(dst)
	dst = append(append(dst, manifestMagic...), formatVersion)
	dst = append(dst, make([]byte, 8)...)
	body := len(dst)
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = append(dst, key...)
	dst = binary.AppendUvarint(dst, uint64(len(extents)))
	for i := range extents {
		dst = extents[i].append(dst)
	}
	binary.LittleEndian.PutUint64(dst[begin+4:], xxhash.Sum64(dst[body:]))
	return dst
}

func (e *extent) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, e.id)
	dst = binary.AppendVarint(dst, e.startMS)
	dst = binary.AppendUvarint(dst, uint64(e.endMS-e.startMS))
	dst = binary.AppendUvarint(dst, uint64(e.stepMS))
	dst = binary.AppendVarint(dst, e.writtenMS)
	dst = binary.AppendUvarint(dst, uint64(len(e.inline)))
	dst = append(dst, e.inline...)
	dst = binary.AppendUvarint(dst, uint64(len(e.parts)))
	for _, p := range e.parts {
		dst = binary.AppendUvarint(dst, uint64(p.storedBytes))
		dst = binary.AppendUvarint(dst, uint64(p.rawBytes))
	}
	return dst
}

// decodeManifest decodes the manifest of the entry under key. It returns errCollision if the
// manifest has another key. Inline parts of the extents alias src.
func decodeManifest(src []byte, key string) ([]extent, error) {
	if len(src) < len(manifestMagic)+1+8 || string(src[:len(manifestMagic)]) != manifestMagic {
		return nil, fmt.Errorf("manifest: %w", errCorrupt)
	}
	if src[len(manifestMagic)] != formatVersion {
		return nil, errVersion
	}
	if body := src[12:]; binary.LittleEndian.Uint64(src[4:]) != xxhash.Sum64(body) {
		return nil, fmt.Errorf("manifest: checksum: %w", errCorrupt)
	}
	d := fields{src: src[12:]}
	if name := d.bytes(); d.failed {
		return nil, fmt.Errorf("manifest: key: %w", errCorrupt)
	} else if string(name) != key {
		return nil, errCollision
	}
	count := d.uvarint()
	if d.failed || count > manifestExtents {
		return nil, fmt.Errorf("manifest: %d extents: %w", count, errCorrupt)
	}
	extents := make([]extent, 0, count)
	for range count {
		e := d.extent()
		if d.failed {
			return nil, fmt.Errorf("manifest: extent %d: %w", len(extents), errCorrupt)
		}
		extents = append(extents, e)
	}
	if len(d.src) != 0 {
		return nil, fmt.Errorf("manifest: %d trailing bytes: %w", len(d.src), errCorrupt)
	}
	return extents, nil
}

// fields consumes a manifest's fields; after the first invalid one all are zero.
type fields struct {
	src    []byte
	failed bool
}

func (d *fields) fail() { d.src, d.failed = nil, true }

func (d *fields) uvarint() uint64 {
	v, n := binary.Uvarint(d.src)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.src = d.src[n:]
	return v
}

func (d *fields) varint() int64 {
	v, n := binary.Varint(d.src)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.src = d.src[n:]
	return v
}

func (d *fields) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.src)) {
		d.fail()
		return nil
	}
	b := d.src[:n:n]
	d.src = d.src[n:]
	return b
}

func (d *fields) extent() (e extent) {
	if len(d.src) < 8 {
		d.fail()
		return e
	}
	e.id = binary.LittleEndian.Uint64(d.src)
	d.src = d.src[8:]
	e.startMS = d.varint()
	length := d.uvarint()
	e.endMS = e.startMS + int64(length)
	e.stepMS = int64(d.uvarint())
	e.writtenMS = d.varint()
	if inline := d.bytes(); len(inline) > 0 {
		e.inline = inline
	}
	count := d.uvarint()
	if length > 1<<62 || e.endMS < e.startMS || e.stepMS < 0 || count == 0 || count > manifestPartsMax ||
		count > uint64(len(d.src)) {
		d.fail()
		return e
	}
	e.parts = make([]partRef, 0, count)
	for range count {
		stored, raw := d.uvarint(), d.uvarint()
		if d.failed || stored > 1<<30 || raw > 1<<40 {
			d.fail()
			return e
		}
		e.parts = append(e.parts, partRef{storedBytes: int(stored), rawBytes: int(raw)})
	}
	if len(e.inline) > 0 && (count != 1 || len(e.inline) != e.parts[0].storedBytes) {
		d.fail()
	}
	return e
}
