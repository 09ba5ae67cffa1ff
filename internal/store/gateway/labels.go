package gateway

import (
	"maps"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// eachLabel calls f for the labels of an encoded set.
func eachLabel(lset []byte, f func(name, value []byte)) {
	for len(lset) > 0 {
		name, value, rest, err := labelenc.Next(lset)
		if err != nil {
			return
		}
		f(name, value)
		lset = rest
	}
}

// add adds a text to a set; it is copied only if it is new. A protobuf message cannot have text that is
// not UTF-8, and would fail for all blocks because of one.
func add(set map[string]bool, text []byte) {
	if !set[string(text)] {
		set[strings.ToValidUTF8(string(text), "\uFFFD")] = true
	}
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
