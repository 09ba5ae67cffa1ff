package gzip

import "encoding/binary"

const (
	repeatBits   = 11
	repeatTries  = 64 // lookups after which repeats turns itself on or off
	repeatSample = 8  // while it is off, one of this many points is looked up
)

// repeats finds earlier points with the same timestamp and value, in any series within windowBytes. This helps for
// constant series with few different values, such as up. It turns itself off while values do not repeat.
type repeats struct {
	points [1 << repeatBits]uint32 // by hash: position of the closing quote before the point
	tries  int                     // lookups since the last decision
	found  int                     // successful lookups since then
	always bool                    // it is on
}

// sameValue looks for an earlier point with the same timestamp and value. While repeats is off, it is called for a
// sample of the points only. If the match with that point is at least 3 bytes longer than the given match, sameValue
// returns the match with that point, otherwise the given match.
func (f *finder) sameValue(at, open, source, length int) (int, int) {
	r := &f.repeats
	time, value := f.load(open-10), binary.LittleEndian.Uint32(f.buf[open:])
	hash := time*hashSpread ^ uint64(value)*0xD6E8FEB86659FD93
	slot := &r.points[hash>>(64-repeatBits)]
	distance := f.base + uint32(at) - *slot
	*slot = f.base + uint32(at)
	r.tries++
	if distance-1 < windowBytes && distance <= uint32(at) {
		if l := f.common(at-int(distance), at); l >= length+3 {
			source, length = at-int(distance), l
			r.found++
		}
	}
	if r.tries == repeatTries {
		r.always = r.found >= repeatTries/8
		r.tries, r.found = 0, 0
	}
	return source, length
}
