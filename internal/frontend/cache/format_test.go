package cache

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

func someExtents() []extent {
	return []extent{
		{id: 1, startMS: 0, endMS: 100, stepMS: 10, writtenMS: 1_700_000_000_000, parts: []partRef{{30, 100}}, inline: bytes.Repeat([]byte("p"), 30)},
		{id: math.MaxUint64, startMS: -500, endMS: 1 << 60, writtenMS: -1, parts: []partRef{{1 << 20, 1 << 22}, {20, 1}}},
	}
}

func TestDecodeManifest_RoundTrip(t *testing.T) {
	for _, extents := range [][]extent{{}, someExtents()[:1], someExtents()} {
		for _, key := range []string{"", "k", strings.Repeat("key ", 10_000)} {
			got, err := decodeManifest(appendManifest(nil, key, extents), key)
			check(t, err == nil && reflect.DeepEqual(got, extents), "got %+v, %v", got, err)
		}
	}
}

// The bytes are those of docs/formats/frontend-cache.md. A change of them needs a new
// formatVersion.
func TestFormat_MatchesTheDocumentation(t *testing.T) {
	extents := []extent{{id: 0x0102030405060708, startMS: 1000, endMS: 61000, stepMS: 15000, writtenMS: 1_700_000_000_000, parts: []partRef{{300, 1000}}}}
	check(t, hex.EncodeToString(appendManifest(nil, "key", extents)) == ""+
		"465143"+"01"+"e037b76ed14dd37a"+ // magic, version, checksum
		"03"+"6b6579"+"01"+ // key, one extent
		"0807060504030201"+"d00f"+"e0d403"+"9875"+"80a0abfef962"+ // id, start, length, step, written
		"00"+"01"+"ac02"+"e807", // not inline, one part: stored bytes, response bytes
		"manifest %x", appendManifest(nil, "key", extents))
	part := beginPart(nil)
	part = new(encoder).appendBlock(part, []byte("abc"), CodecPacked)
	sealPart(part, 0x0102030405060708, 7)
	check(t, hex.EncodeToString(part) == "d9d4cde922e6cdf9"+"0807060504030201"+"07000000"+"03"+"00"+"03"+"616263", "part %x", part)
	text := "a" + samples(1000, 1000, "12.5", "12.5", "NaN") + strings.Repeat(" ", 90)
	packed := hex.EncodeToString(new(packer).appendPacked(nil, []byte(text)))
	check(t, strings.HasPrefix(packed, "06"+"08"+ // bytes of headers and of values
		"01"+"03"+"d00f"+"e807"+ // one literal byte, three samples from 1000 on, each 1000 later
		"04"+"47b8"+"00"+"83"+"4e614e"), // 12.5, the same, and NaN as it is; then the literals by s2
		"packed %s", packed)
	check(t, storeKey("key") == "fqc1:2c70e12b7a0646f92279f427c7b38e73" && partKey(storeKey("key"), 0xABC, 12) == "fqc1:2c70e12b7a0646f92279f427c7b38e73:abc:12",
		"%s %s", storeKey("key"), partKey(storeKey("key"), 0xABC, 12))
}

func TestDecodeManifest_RejectsForeignManifests(t *testing.T) {
	m := appendManifest(nil, "key", someExtents())
	_, err := decodeManifest(m, "another")
	check(t, errors.Is(err, errCollision), "another key: %v", err)
	other := bytes.Clone(m)
	other[3]++
	_, err = decodeManifest(other, "key")
	check(t, errors.Is(err, errVersion), "another version: %v", err)
	for i := range m {
		_, err = decodeManifest(m[:i], "key")
		check(t, errors.Is(err, errCorrupt), "cut at %d: %v", i, err)
	}
}

// reseal gives a damaged manifest a valid checksum, so that its fields are decoded.
func reseal(m []byte) []byte {
	d := appendManifest(nil, "", nil)
	if len(m) < 12 {
		return m
	}
	m = append(bytes.Clone(d[:4]), m[4:]...)
	binary.LittleEndian.PutUint64(m[4:], xxhash.Sum64(m[12:]))
	return m
}

func TestDecodeManifest_ChecksFields(t *testing.T) {
	m := appendManifest(nil, "key", someExtents())
	refused := 0
	for i := 12; i < len(m); i++ {
		for _, x := range []byte{1, 0x7F, 0x80, 0xFF} {
			bad := bytes.Clone(m)
			bad[i] ^= x
			if extents, err := decodeManifest(reseal(bad), "key"); err != nil {
				refused++
			} else {
				check(t, len(extents) == 2 && extents[0].startMS <= extents[0].endMS, "%+v", extents)
			}
		}
		_, err := decodeManifest(reseal(m[:i]), "key")
		check(t, err != nil, "cut at %d", i)
	}
	check(t, refused > 50, "only %d were refused", refused)
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add(appendManifest(nil, "key", someExtents()), true)
	f.Add(appendManifest(nil, "", nil), false)
	f.Fuzz(func(t *testing.T, m []byte, sealed bool) {
		if sealed {
			m = reseal(m)
		}
		extents, err := decodeManifest(m, "key")
		if err != nil {
			check(t, errors.Is(err, errCorrupt) || errors.Is(err, errVersion) || errors.Is(err, errCollision), "%v", err)
			return
		}
		for _, e := range extents {
			check(t, e.startMS <= e.endMS && e.stepMS >= 0 && len(e.parts) > 0, "%+v", e)
		}
		again, err := decodeManifest(appendManifest(nil, "key", extents), "key")
		check(t, err == nil && reflect.DeepEqual(again, extents), "%+v became %+v, %v", extents, again, err)
	})
}

func TestDecode_AnotherLengthIsCorrupt(t *testing.T) {
	text := response("mix", 3, 10)
	for _, codec := range []Codec{CodecPacked, CodecS2, CodecNone} {
		b, _, err := cutBlock(new(encoder).appendBlock(nil, text, codec))
		check(t, err == nil, "%v", err)
		for _, length := range []int{len(text) - 1, len(text) + 1} {
			err := new(decoder).decode(make([]byte, length), b)
			check(t, errors.Is(err, errCorrupt), "codec %d, %d bytes of %d: %v", codec, length, len(text), err)
		}
	}
}

func FuzzDecodeBlocks(f *testing.F) {
	e := new(encoder)
	for _, codec := range []Codec{CodecPacked, CodecS2, CodecNone} {
		f.Add(e.appendBlock(nil, response("mix", 3, 10), codec))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		d := new(decoder)
		for len(src) > 0 {
			b, rest, err := cutBlock(src)
			if err != nil {
				check(t, errors.Is(err, errCorrupt), "%v", err)
				return
			}
			check(t, b.rawBytes > 0 && b.rawBytes <= blockBytesMax && len(rest) < len(src), "%+v", b)
			if err := d.decode(make([]byte, b.rawBytes), b); err != nil {
				check(t, errors.Is(err, errCorrupt), "%v", err)
			}
			src = rest
		}
	})
}

func FuzzCacheRoundTrip(f *testing.F) {
	f.Add(response("mix", 3, 10), byte(0))
	f.Add(noise(100), byte(1))
	f.Fuzz(func(t *testing.T, text []byte, codec byte) {
		if len(text) == 0 || len(text) > blockBytes {
			return
		}
		part := new(encoder).appendBlock(beginPart(nil), text, Codec(codec%3))
		sealPart(part, 5, 6)
		blocks, err := openPart(part, 5, 6, len(part))
		check(t, err == nil, "open: %v", err)
		b, rest, err := cutBlock(blocks)
		check(t, err == nil && len(rest) == 0 && b.rawBytes == len(text), "%d, %v", len(rest), err)
		got := make([]byte, b.rawBytes)
		check(t, new(decoder).decode(got, b) == nil && bytes.Equal(got, text), "other bytes")
	})
}
