// Package invariant holds the assertions that catch ferula's own bugs.
//
// What comes in is a condition that only a programming mistake can break; what
// goes out is nothing, or a panic that names the broken condition. Bytes from a
// disk, a wire or a user never reach it: those get errors. Expensive checks ask
// Enabled first, which is a constant and true only with `-tags invariants`.
package invariant

import "fmt"

// Check panics with the formatted message when cond is false.
func Check(cond bool, format string, args ...any) {
	if !cond {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
