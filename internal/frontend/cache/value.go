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

// formatVersion is in the keys. So processes with different format versions that share a server do not see each
// other's values.
const formatVersion = 2

const (
	headerBytes = 8 + 8 + 4               // of every part
	headBytes   = headerBytes + 6*8 + 3*4 // of the first part, without the key
	partsMax    = 1 << 16
)

// Why a stored response is not used.
var (
	errCorrupt   = errors.New("corrupt")
	errCollision = errors.New("another key with the same hash")
	errMissing   = errors.New("missing")
)

// head describes a stored response. It is at the beginning of the first part.
type head struct {
	id             uint64 // random: of two writers of a value, each has its own
	startMS, endMS int64  // inclusive
	stepMS         int64  // 0: no fixed step
	writtenMS      int64  // from which the TTL counts
	rawBytes       int64  // of the response
	storedBytes    int64  // of all parts
	parts          int
	codec          codec
}

// valid reports whether the response has not expired. A response written in the future, which exists after a clock
// was set back, is valid only if it is less than the TTL ahead.
func (h *head) valid(now time.Time, ttl time.Duration) bool {
	age := now.UnixMilli() - h.writtenMS
	return ttl <= 0 || (age < ttl.Milliseconds() && -age < ttl.Milliseconds())
}

func (h *head) step() int64 { return max(h.stepMS, 1) }

// covers reports whether h has all steps of the other response.
func (h *head) covers(other *head) bool {
	return h.stepMS == other.stepMS && h.startMS <= other.startMS && h.endMS >= other.endMS
}

// touches reports whether the steps of h and of the other response together have no gap.
func (h *head) touches(other *head) bool {
	return h.stepMS == other.stepMS && h.startMS <= other.endMS+h.step() && other.startMS <= h.endMS+h.step()
}

// storeKey is the key of the first part in the store: short, without spaces, and the same in all processes. It is a
// cryptographic hash of the value's key, because users control the text of that key.
func storeKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	var b [2 * 16]byte
	hex.Encode(b[:], sum[:16])
	return "fqc" + strconv.Itoa(formatVersion) + ":" + string(b[:])
}

// partKey is the store key of a part.
func partKey(base string, number int) string {
	if number == 0 {
		return base
	}
	return base + ":" + strconv.Itoa(number)
}

// seal writes the headers of all parts and the head. Each part has space for its header, the first one also for the
// head.
func (h *head) seal(parts [][]byte, key string) {
	h.parts, h.storedBytes = len(parts), 0
	for _, p := range parts {
		h.storedBytes += int64(len(p))
	}
	b := parts[0][headerBytes:headerBytes]
	for _, v := range []int64{h.startMS, h.endMS, h.stepMS, h.writtenMS, h.rawBytes, h.storedBytes} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	for _, v := range []int{h.parts, int(h.codec), len(key)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	_ = append(b, key...)
	for i, p := range parts {
		binary.LittleEndian.PutUint64(p[8:], h.id)
		binary.LittleEndian.PutUint32(p[16:], uint32(i))
		binary.LittleEndian.PutUint64(p, xxhash.Sum64(p[8:]))
	}
}

// checkPart checks that part is undamaged and has this number.
func checkPart(part []byte, number int) error {
	switch {
	case len(part) < headerBytes:
		return fmt.Errorf("part %d: %d bytes: %w", number, len(part), errCorrupt)
	case binary.LittleEndian.Uint64(part) != xxhash.Sum64(part[8:]):
		return fmt.Errorf("part %d: checksum: %w", number, errCorrupt)
	case binary.LittleEndian.Uint32(part[16:]) != uint32(number):
		return fmt.Errorf("part %d: number of another part: %w", number, errCorrupt)
	}
	return nil
}

func partID(part []byte) uint64 { return binary.LittleEndian.Uint64(part[8:]) }

// openHead reads the head of the first part, after checkPart. It returns errCollision if the value has another key.
// data, the beginning of the compressed response, aliases part.
func openHead(part []byte, key string) (h head, data []byte, err error) {
	if len(part) < headBytes {
		return h, nil, fmt.Errorf("head: %w", errCorrupt)
	}
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(part[headerBytes+8*i:])) }
	short := func(i int) int { return int(binary.LittleEndian.Uint32(part[headerBytes+6*8+4*i:])) }
	h = head{id: partID(part), startMS: field(0), endMS: field(1), stepMS: field(2), writtenMS: field(3),
		rawBytes: field(4), storedBytes: field(5), parts: short(0), codec: codec(short(1))}
	data = part[headBytes:]
	if n := short(2); n > len(data) || string(data[:n]) != key {
		return h, nil, errCollision
	}
	if h.startMS > h.endMS || h.stepMS < 0 || h.rawBytes < 0 || h.storedBytes < int64(len(part)) ||
		h.parts < 1 || h.parts > partsMax || h.codec > codecS2 {
		return h, nil, fmt.Errorf("head: %w", errCorrupt)
	}
	return h, data[len(key):], nil
}
