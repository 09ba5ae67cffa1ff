package export

import (
	"time"
)

// window is a part of the range that is read at once; both ends are inclusive.
type window struct {
	mint, maxt int64
}

// windows divides a range at multiples of length: blocks of a database end there, so their
// chunks are copied whole. If length is 0, it returns one window.
func windows(startMS, endMS int64, length time.Duration) []window {
	step := length.Milliseconds()
	if step <= 0 {
		return []window{{startMS, endMS}}
	}
	var all []window
	for mint := startMS; mint <= endMS; {
		floor := mint - mint%step
		if floor > mint { // before 1970 the remainder is negative
			floor -= step
		}
		maxt := min(floor+step-1, endMS)
		all = append(all, window{mint, maxt})
		mint = maxt + 1
	}
	return all
}
