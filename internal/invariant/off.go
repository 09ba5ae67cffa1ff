//go:build !invariants

package invariant

// Enabled reports whether expensive checks are compiled in.
const Enabled = false
