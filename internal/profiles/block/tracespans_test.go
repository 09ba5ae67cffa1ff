package block

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
)

func someSpans() *TraceSpans {
	var b TraceSpansBuilder
	b.Add(9, profiles.TraceID{1}, 2, []uint32{1, 5}, []int64{3, 4})
	b.Add(7, profiles.TraceID{}, 0, []uint32{2}, []int64{1})
	b.Add(7, profiles.TraceID{2}, 1, []uint32{0, 300}, []int64{1 << 40, 2})
	b.Add(8, profiles.TraceID{1}, 1, []uint32{4}, []int64{6})
	return b.Spans()
}

func TestTraceSpans_AreFoundByIDAndByTrace(t *testing.T) {
	file, err := someSpans().encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := decodeTraceSpans(file, 3)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*TraceSpans{"head": someSpans(), "file": read} {
		find := func(ids []uint64, traces ...profiles.TraceID) (totals []int64) {
			err := s.Find(ids, traces, func(span TraceSpan) error {
				_, values, err := s.Samples(span, nil, nil)
				var sum int64
				for _, v := range values {
					sum += v
				}
				if sum != span.Total {
					t.Errorf("%s: span %+v has samples of %d", name, span, sum)
				}
				totals = append(totals, span.Total)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(totals)
			return totals
		}
		for _, tt := range []struct {
			got, want []int64
		}{
			{find([]uint64{7}), []int64{1, 1<<40 + 2}}, {find([]uint64{9, 9, 1}), []int64{7}}, {find(nil, profiles.TraceID{1}), []int64{6, 7}},
			{find([]uint64{9}, profiles.TraceID{1}), []int64{6, 7}}, {find([]uint64{9}, profiles.TraceID{3}), []int64{7}}, {find(nil), nil}, {find([]uint64{1 << 63}), nil},
		} {
			if !slices.Equal(tt.got, tt.want) {
				t.Errorf("%s: %v, want %v", name, tt.got, tt.want)
			}
		}
	}
	if _, err := decodeTraceSpans(file, 2); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a row that the block lacks: %v", err)
	}
	for at := range file {
		bad := slices.Clone(file)
		bad[at] ^= 0x40
		if s, err := decodeTraceSpans(bad, 3); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d: %v", at, err)
		} else if err == nil && at < len(file)-sectionHeader && s.Len() != 4 {
			t.Errorf("byte %d: a flipped bit is not noticed", at)
		}
	}
}

func FuzzTraceSpans(f *testing.F) {
	file, err := someSpans().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeTraceSpans(b, 3)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		for i := range s.Len() {
			span := s.Span(i)
			s.TraceID(span)
			if _, _, err := s.Samples(span, nil, nil); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
		}
	})
}

func TestRemoteTraceSpans_ThatEndEarlyAreUnavailable(t *testing.T) {
	file, err := someSpans().encode()
	if err != nil {
		t.Fatal(err)
	}
	r := &Reader{meta: Meta{Rows: 3, SpansBytes: uint64(len(file))}, remote: &remote{}}
	if _, err := r.TraceSpans(); !errors.Is(err, profiles.ErrUnavailable) {
		t.Errorf("without a file: %v", err)
	}
	for size := range len(file) + 1 {
		r.ReadSpansFrom(bytes.NewReader(file[:size]))
		s, err := r.TraceSpans()
		if whole := size == len(file); (err == nil) != whole || (s != nil) != whole || !whole && (!errors.Is(err, profiles.ErrUnavailable) || !errors.Is(err, io.EOF)) {
			t.Fatalf("%d bytes of %d: %v", size, len(file), err)
		}
	}
}
