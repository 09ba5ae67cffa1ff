//go:build !invariants

package invariant

// Enabled tells whether the expensive checks are compiled in.
const Enabled = false
