package store

import (
	"bytes"
	"fmt"
	"testing"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// A client may send very many rows under one ID: rows that are stored already are visited once for a profile, not once for each of its rows.
func TestHead_StoredRowsAreVisitedOnceForAProfile(t *testing.T) {
	fn := &googlepprof.Function{ID: 1, Name: "f"}
	loc := &googlepprof.Location{ID: 1, Line: []googlepprof.Line{{Function: fn, Line: 1}}}
	src := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "a", Unit: "count"}, {Type: "b", Unit: "count"}, {Type: "a", Unit: "count"}, {Type: "none", Unit: "count"}},
		PeriodType: &googlepprof.ValueType{Type: "space", Unit: "bytes"}, Function: []*googlepprof.Function{fn}, Location: []*googlepprof.Location{loc},
	}
	for i := range 3 {
		src.Sample = append(src.Sample, &googlepprof.Sample{Location: []*googlepprof.Location{loc}, Label: map[string][]string{"k": {fmt.Sprint(i)}}, Value: []int64{1, 2, 3, 0}})
	}
	var b bytes.Buffer
	if err := src.Write(&b); err != nil {
		t.Fatal(err)
	}
	var decoded pprof.Profile
	if err := decoded.Decode(b.Bytes(), pprof.Limits{}); err != nil {
		t.Fatal(err)
	}
	p, calls := &profiles.RawProfile{Labels: benchLabels(), Profile: &decoded, ID: [16]byte{1}}, 0
	first := newHead(nil)
	none := func(block.Key, func([]byte)) bool { calls++; return false }
	if first.apply(p, 1, none); calls != 1 || first.rows() != 6 || len(first.shared) != 0 { // the second "a" is the first again
		t.Errorf("%d calls, %d rows, %d shared", calls, first.rows(), len(first.shared))
	}
	if first.apply(p, 1, none); calls != 2 || first.rows() != 6 || len(first.shared) != 0 {
		t.Errorf("again: %d calls, %d rows, %d shared", calls, first.rows(), len(first.shared))
	}
	older := func(key block.Key, row func([]byte)) bool {
		row([]byte("another"))
		return first.holds(key, func(labels []byte) {
			if calls++; calls > 4 {
				row(labels)
			}
		})
	}
	calls = 0
	second := newHead(nil)
	if second.apply(p, 1, older); calls != 6 || second.rows() != 4 || len(second.shared) != 1 {
		t.Errorf("of which two rows are older: %d calls, %d rows, %d shared", calls, second.rows(), len(second.shared))
	}
	if second.apply(p, 2, older); second.rows() != 10 || len(second.shared) != 1 {
		t.Errorf("another time: %d rows, %d shared", second.rows(), len(second.shared))
	}
}
