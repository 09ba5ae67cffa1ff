package jfr

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// contextsMax is the maximum number of label sets of a recording.
const contextsMax = 100_000

// Contexts decodes the labels that Pyroscope's Java agent sends with a recording, a message
// LabelsSnapshot:
//
//	message LabelsSnapshot { map<int64, Context> contexts = 1; map<int64, string> strings = 2; }
//	message Context        { map<int64, int64> labels = 1; }  // id of the name to id of the value, both in strings
//
// The keys of the result are the ids of contexts, to which Event.Context refers. Other fields
// are ignored. Invalid input is ErrCorrupt.
func Contexts(b []byte) (map[uint64][][2]string, error) {
	texts, raw := map[uint64]string{}, map[uint64][][2]uint64{}
	err := eachField(b, func(number protowire.Number, entry []byte, _ uint64) error {
		var id uint64
		var value []byte
		if err := eachField(entry, func(n protowire.Number, b []byte, v uint64) error {
			switch n {
			case 1:
				id = v
			case 2:
				value = b
			}
			return nil
		}); err != nil {
			return err
		}
		switch number {
		case 1:
		case 2:
			texts[id] = string(value)
			return nil
		default:
			return nil
		}
		var labels [][2]uint64
		err := eachField(value, func(_ protowire.Number, b []byte, _ uint64) error {
			var label [2]uint64
			labels = append(labels, label)
			return eachField(b, func(n protowire.Number, _ []byte, v uint64) error {
				if n == 1 || n == 2 {
					labels[len(labels)-1][n-1] = v
				}
				return nil
			})
		})
		if raw[id] = labels; len(raw) > contextsMax {
			return fmt.Errorf("more than %d sets", contextsMax)
		}
		return err
	})
	if err != nil {
		return nil, corrupt("labels: %v", err)
	}
	contexts := make(map[uint64][][2]string, len(raw))
	for id, labels := range raw {
		for _, l := range labels {
			contexts[id] = append(contexts[id], [2]string{texts[l[0]], texts[l[1]]})
		}
	}
	return contexts, nil
}

// eachField calls f with each field of a protobuf message: its number, and its bytes (length-delimited) or its value
// v (varint).
func eachField(b []byte, f func(number protowire.Number, b []byte, v uint64) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var inner []byte
		var v uint64
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			inner, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(number, inner, v); err != nil {
			return err
		}
	}
	return nil
}
