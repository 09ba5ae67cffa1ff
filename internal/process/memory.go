package process

import (
	"runtime/debug"
	"runtime/metrics"
)

const smallHeapBytes = 64 << 20 // live after a collection

// FreeMemory collects garbage and returns free memory to the system, if the heap is small. Call it after work that
// leaves much garbage behind: an idle process hardly allocates, so it would keep this garbage for minutes, and its pages
// for ever. A collection of a small heap takes milliseconds; a large one is left to the runtime.
func FreeMemory() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}} // at the end of the last collection
	if metrics.Read(live); live[0].Value.Uint64() < smallHeapBytes {
		debug.FreeOSMemory()
	}
}
