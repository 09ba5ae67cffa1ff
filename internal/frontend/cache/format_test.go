package cache

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"encoding/binary"
	"github.com/cespare/xxhash/v2"
)

func sealed(h head, key string, data ...[]byte) [][]byte {
	parts := [][]byte{append(make([]byte, headBytes+len(key)), data[0]...)}
	for _, d := range data[1:] {
		parts = append(parts, append(make([]byte, headerBytes), d...))
	}
	h.seal(parts, key)
	return parts
}

func TestOpenHead_RoundTrip(t *testing.T) {
	want := head{id: 1 << 63, startMS: -5, endMS: 1 << 60, stepMS: 15, writtenMS: 1_700_000_000_000, rawBytes: 1 << 40, codec: codecS2}
	parts := sealed(want, "the key", []byte("ab"), []byte("cde"))
	for i, p := range parts {
		check(t, checkPart(p, i) == nil && partID(p) == want.id, "part %d", i)
		check(t, errors.Is(checkPart(p, i+1), errCorrupt), "part %d has two numbers", i)
	}
	got, data, err := openHead(parts[0], "the key")
	want.parts, want.storedBytes = 2, int64(len(parts[0])+len(parts[1]))
	check(t, err == nil && got == want && string(data) == "ab" && string(parts[1][headerBytes:]) == "cde", "%+v, %q, %v", got, data, err)
	_, _, err = openHead(parts[0], "the ke")
	check(t, errors.Is(err, errCollision), "another key: %v", err)
}

// The document has the numbers of the code.
func TestFormat_MatchesTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../../docs/formats/frontend-cache.md")
	check(t, err == nil, "%v", err)
	for _, want := range []string{"version 2", "fqc2:<first 16 bytes of SHA-256", "512 KiB", "0 uncompressed", "1 an S2 stream"} {
		check(t, strings.Contains(string(text), want), "no %q", want)
	}
	check(t, strings.HasPrefix(storeKey("k"), "fqc2:") && len(storeKey("k")) == 5+32 && partKey(storeKey("k"), 3) == storeKey("k")+":3", "%s", storeKey("k"))
	check(t, codecNone == 0 && codecS2 == 1, "other codecs")
	part := sealed(head{id: 0x0807060504030201, startMS: 1, endMS: 2, stepMS: 3, writtenMS: 4, rawBytes: 5, codec: codecS2}, "key", []byte("data"))[0]
	want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0}
	for _, v := range []byte{1, 2, 3, 4, 5, byte(len(part))} {
		want = append(want, v, 0, 0, 0, 0, 0, 0, 0)
	}
	want = append(want, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0)
	want = append(want, "keydata"...)
	check(t, bytes.Equal(part[8:], want), "%x\n%x", part[8:], want)
	check(t, binary.LittleEndian.Uint64(part) == xxhash.Sum64(want), "checksum")
}

func TestOpenHead_ChecksFields(t *testing.T) {
	for name, change := range map[string]func(h *head){
		"turned round": func(h *head) { h.startMS = 11 }, "a negative step": func(h *head) { h.stepMS = -1 },
		"a negative length": func(h *head) { h.rawBytes = -1 }, "another codec": func(h *head) { h.codec = 2 },
	} {
		h := head{endMS: 10, rawBytes: 1}
		change(&h)
		_, _, err := openHead(sealed(h, "k", []byte("x"))[0], "k")
		check(t, errors.Is(err, errCorrupt), "%s: %v", name, err)
	}
	for name, at := range map[string]int{"no parts": headBytes - 12, "fewer bytes than the part": headBytes - 20} {
		part := sealed(head{}, "k", []byte("x"))[0]
		clear(part[at : at+4])
		_, _, err := openHead(part, "k")
		check(t, errors.Is(err, errCorrupt), "%s: %v", name, err)
	}
	for n := range headBytes {
		_, _, err := openHead(make([]byte, n), "")
		check(t, errors.Is(err, errCorrupt), "%d bytes: %v", n, err)
	}
}

// No value makes a reader panic, or return more or fewer bytes than the head says.
func FuzzReader(f *testing.F) {
	for _, kind := range []codec{codecNone, codecS2} {
		f.Add(sealed(head{endMS: 10, rawBytes: 4, codec: kind}, "k", []byte("text"))[0])
	}
	f.Add([]byte{})
	store := newFakeStore()
	c := newCache(f, store, Options{})
	f.Fuzz(func(t *testing.T, part []byte) {
		if len(part) >= headerBytes { // as if the sender of garbage knew the checksum
			part = bytes.Clone(part)
			binary.LittleEndian.PutUint64(part, xxhash.Sum64(part[8:]))
		}
		store.mu.Lock()
		store.values[storeKey("k")] = part
		store.mu.Unlock()
		e := c.Lookup(t.Context(), "k", -1<<62, 1<<62)
		if e == nil {
			return
		}
		want := e.Length()
		got, err := readAll(e)
		check(t, err == nil && int64(len(got)) == want || errors.Is(err, ErrGone), "%d bytes, want %d, %v", len(got), want, err)
	})
}

func FuzzCacheRoundTrip(f *testing.F) {
	f.Add([]byte(`{"status":"success"}`), byte(3))
	f.Add(noise(20_000), byte(200))
	f.Fuzz(func(t *testing.T, text []byte, size byte) {
		for _, store := range stores(t) {
			c := newCache(t, store(), Options{PartBytes: partBytesMin})
			w := c.Writer("k", 0, 10, 10)
			for rest := text; len(rest) > 0; {
				n := min(len(rest), int(size)*int(size)+1)
				_, _ = w.Write(rest[:n])
				rest = rest[n:]
			}
			w.Commit()
			flush(t, c)
			got := get(t, c, "k", 0, 10)
			check(t, got == "0-10:"+string(text) || len(text) == 0 && got == "", "%d bytes of %d", len(got), len(text))
		}
	})
}
