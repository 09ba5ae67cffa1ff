//go:build race

package metrics

// With the race detector sync.Pool drops values at random.
const raceEnabled = true
