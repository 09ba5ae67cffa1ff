//go:build race

package metrics

// The race detector makes sync.Pool forget at random.
const raceEnabled = true
