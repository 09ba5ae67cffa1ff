package jfr

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// contextsMax is the maximum number of label sets of a recording.
const contextsMax = 100_000

// Contexts decodes the labels that the agent sends with a recording:
//
//	1 context* {1 id  2 {1 label* {1 name  2 value}}}   2 text* {1 id  2 text}
//
// where name and value are ids of texts. The keys of the result are the ids of contexts, to
// which Event.Context refers. Invalid input is ErrCorrupt.
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
		if number == 2 {
			texts[id] = string(value)
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

// eachField calls f with each field of a protobuf message: its bytes or its number.
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
