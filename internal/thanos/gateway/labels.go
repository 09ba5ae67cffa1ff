package gateway

import (
	"maps"
	"slices"
	"strings"
)

// add adds a text to a set, and copies it only if it is new. Bytes that are not UTF-8 are replaced,
// because a protobuf string cannot have them: one such text would make the response for all blocks fail.
func add(set map[string]bool, text []byte) {
	if !set[string(text)] {
		set[strings.ToValidUTF8(string(text), "\uFFFD")] = true
	}
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
