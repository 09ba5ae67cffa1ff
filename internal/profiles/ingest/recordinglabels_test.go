package ingest

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/profiles"
)

func TestRecordingLabels_DecodesTheLabelsOfTheAgent(t *testing.T) {
	message := func(number protowire.Number, fields ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(fields, nil))
	}
	id := func(number protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
	}
	b := bytes.Join([][]byte{
		message(1, id(1, 7), message(2, message(1, id(1, 1), id(2, 2)))),
		message(2, id(1, 1), message(2, []byte("vehicle"))), message(2, id(1, 2), message(2, []byte("car"))),
	}, nil)
	got, err := recordingLabels(b)
	if err != nil || len(got) != 1 || len(got[7]) != 1 || got[7][0] != [2]string{"vehicle", "car"} {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := recordingLabels(b[:len(b)-2]); !errors.Is(err, profiles.ErrBadRequest) {
		t.Error("labels that are cut short are accepted")
	}
}

func TestRecordingLabels_NumberOfSetsIsLimited(t *testing.T) {
	entries := func(n int) (b []byte) {
		for i := range n {
			entry := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(i))
			b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), entry)
		}
		return b
	}
	if got, err := recordingLabels(entries(contextsMax)); err != nil || len(got) != 0 {
		t.Errorf("%d sets, %v", len(got), err)
	}
	if _, err := recordingLabels(entries(contextsMax + 1)); !errors.Is(err, profiles.ErrBadRequest) {
		t.Error(err)
	}
}

func TestRecordingLabels_BrokenLabelsAreCorrupt(t *testing.T) {
	for name, b := range map[string][]byte{
		"a tag of no field":          {0x00},
		"an entry that is cut":       {0x0A, 1, 0x08},
		"a set that is cut":          {0x0A, 4, 0x12, 2, 0x0A, 5},
		"a label that is cut":        {0x0A, 5, 0x12, 3, 0x0A, 1, 0x08},
		"a number of 4 bytes, cut":   {0x0D, 1, 2},
		"a group that does not end":  {0x0B},
		"a length that is too great": {0x0A, 0x7F},
	} {
		if got, err := recordingLabels(b); !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// Unknown fields of any type are skipped.
	b := []byte{0x0A, 17, 0x08, 7, 0x1D, 1, 2, 3, 4, 0x12, 8, 0x0A, 6, 0x08, 1, 0x10, 2, 0x18, 3, 0x12, 5, 0x08, 1, 0x12, 1, 'k', 0x12, 5, 0x08, 2, 0x12, 1, 'v'}
	b = append(b, 0x1A, 12, 0x08, 9, 0x12, 8, 0x0A, 6, 0x08, 1, 0x10, 2, 0x18, 3) // field 3 has the form of a context, but is none
	if got, err := recordingLabels(b); err != nil || len(got) != 1 || len(got[7]) != 1 || got[7][0] != [2]string{"k", "v"} {
		t.Errorf("%v, %v", got, err)
	}
}
