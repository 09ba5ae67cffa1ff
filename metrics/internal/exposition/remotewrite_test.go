package exposition

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// inflate decodes the block format of snappy, as its description has it.
func inflate(src []byte) ([]byte, error) {
	total, n := binary.Uvarint(src)
	if n <= 0 {
		return nil, errors.New("no length")
	}
	src = src[n:]
	var out []byte
	for len(src) > 0 {
		tag := src[0]
		src = src[1:]
		switch tag & 3 {
		case 0:
			size := int(tag >> 2)
			if extra := size - 59; extra > 0 {
				size = 0
				for i := range extra {
					size |= int(src[i]) << (8 * i)
				}
				src = src[extra:]
			}
			if size++; size > len(src) {
				return nil, errors.New("a literal beyond the end")
			}
			out, src = append(out, src[:size]...), src[size:]
		case 2:
			offset := int(src[0]) | int(src[1])<<8
			src = src[2:]
			if offset == 0 || offset > len(out) {
				return nil, errors.New("a copy from before the start")
			}
			for range int(tag>>2) + 1 {
				out = append(out, out[len(out)-offset])
			}
		default:
			return nil, errors.New("a copy of another kind")
		}
	}
	if uint64(len(out)) != total {
		return nil, errors.New("another length")
	}
	return out, nil
}

func TestAppendSnappy_IsInflatedToTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 200_000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	text := []byte(strings.Repeat(`requests_total{path="/api/v1/query",code="200"} 12345`+"\n", 4000))
	var sources [][]byte
	for _, n := range []int{0, 1, 3, 4, 5, 59, 60, 61, 62, 255, 256, 257, 258, 65535, 65536, 65537, 131072, 131075, 200_000} {
		sources = append(sources, noise[:n], text[:n], make([]byte, n), append(bytes.Clone(noise[:n/2]), text[:n-n/2]...))
	}
	for _, src := range sources {
		zipped := AppendSnappy([]byte("x"), src)
		got, err := inflate(zipped[1:])
		if err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%d bytes: %v", len(src), err)
		}
		if len(zipped) > len(src)+len(src)/1000+20 {
			t.Errorf("%d bytes became %d", len(src), len(zipped))
		}
	}
	if n := len(AppendSnappy(nil, text)); n > len(text)/10 {
		t.Errorf("%d bytes of text became %d", len(text), n)
	}
}

func FuzzAppendSnappy(f *testing.F) {
	f.Add([]byte("abcdabcdabcdabcd"), uint16(3))
	f.Fuzz(func(t *testing.T, piece []byte, times uint16) {
		src := bytes.Repeat(piece, int(times%2000))
		if got, err := inflate(AppendSnappy(nil, src)); err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%d bytes: %v", len(src), err)
		}
	})
}

func TestWriteRequests_InMessagesOfSeriesMax(t *testing.T) {
	var sizes []int
	failed := errors.New("no more")
	w := WriteRequests{SeriesMax: 3, NowMS: 5}
	w.Send = func(message []byte, series int) error {
		if sizes = append(sizes, series); len(message) == 0 {
			t.Error("an empty message")
		}
		if len(sizes) == 5 {
			return failed
		}
		return nil
	}
	page := []byte(strings.Repeat("a{b=\"c\"} 1\n# TYPE x counter\nbad\nd 1 2 3\n", 7))
	if err := errors.Join(w.Page(page), w.Flush(), w.Flush()); err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 3 || sizes[0] != 3 || sizes[2] != 1 {
		t.Errorf("messages of %v series", sizes)
	}
	if err := w.Page(page); !errors.Is(err, failed) || len(sizes) != 5 {
		t.Errorf("after an error: %v, %v", err, sizes)
	}
}
