package sidecar

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func bytesField(dst []byte, number protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, number, protowire.BytesType), b)
}

func varint(dst []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), v)
}

// encoded is one series of one chunk.
func encoded(label, data string, minMS uint64, hash bool) []byte {
	chunk := bytesField(nil, 2, []byte(data))
	if hash {
		chunk = varint(chunk, 3, 7)
	}
	aggregate := bytesField(varint(varint(nil, 1, minMS), 2, minMS+1), 3, chunk)
	return bytesField(bytesField(nil, 1, []byte(label)), 2, aggregate)
}

func sum(t *testing.T, messages ...[]byte) contents {
	t.Helper()
	var c contents
	for _, m := range messages {
		if err := c.read(m); err != nil {
			t.Fatal(err)
		}
	}
	c.finish()
	return c
}

func TestContents_IndependentOfMessages(t *testing.T) {
	a, b := encoded("a", "x", 1, false), encoded("b", "y", 1, false)
	single := sum(t, bytesField(nil, 1, a), bytesField(nil, 1, b))
	if single.series != 2 || single.chunks != 2 {
		t.Errorf("%d series, %d chunks", single.series, single.chunks)
	}
	if batch := sum(t, bytesField(nil, 4, bytesField(bytesField(nil, 1, a), 1, b))); batch.sum != single.sum {
		t.Error("a batch differs from single series")
	}
	if hashed := sum(t, bytesField(nil, 1, encoded("a", "x", 1, true)), bytesField(nil, 1, b)); hashed.sum != single.sum {
		t.Error("a chunk's hash makes a difference")
	}
	for what, other := range map[string][][]byte{
		"order": {b, a}, "labels": {encoded("c", "x", 1, false), b}, "data": {encoded("a", "z", 1, false), b}, "time": {encoded("a", "x", 2, false), b}, "number": {a},
	} {
		var messages [][]byte
		for _, one := range other {
			messages = append(messages, bytesField(nil, 1, one))
		}
		if sum(t, messages...).sum == single.sum {
			t.Errorf("another %s makes no difference", what)
		}
	}
}

func TestContents_RejectsWarningsAndMalformedMessages(t *testing.T) {
	for _, m := range [][]byte{bytesField(nil, 2, []byte("a store is down")), {0x0A, 0x09}, {0x0D}} {
		if err := new(contents).read(m); err == nil {
			t.Errorf("%q is taken", m)
		}
	}
}
