// Package invariant contains assertions that detect bugs of ferula.
//
// Check panics if its condition is false. Only a programming error may make it false: invalid
// bytes from disk, network or users must return errors instead. Expensive checks are guarded
// by Enabled, a constant that is true only with `-tags invariants`.
package invariant

import "fmt"

// Check panics with the formatted message if cond is false.
func Check(cond bool, format string, args ...any) {
	if !cond {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
