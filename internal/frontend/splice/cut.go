package splice

import (
	"bytes"

	"github.com/ferula-io/ferula/promjson"
)

// cut returns the points of a piece whose times lie in [fromMS, toMS], as a slice
// of it. Points are in the order of time, so it walks in from both ends: what it
// costs is what it drops.
func cut(points []byte, fromMS, toMS int64) ([]byte, error) {
	for len(points) > 0 {
		ms, err := promjson.FirstTime(points)
		if err != nil {
			return nil, err
		}
		if ms >= fromMS {
			break
		}
		points = points[pointBehind(points):]
	}
	for len(points) > 0 {
		last := lastPoint(points)
		ms, err := promjson.FirstTime(points[last:])
		if err != nil {
			return nil, err
		}
		if ms <= toMS {
			break
		}
		points = bytes.TrimRight(points[:last], ", \t\r\n")
	}
	return points, nil
}

// pointBehind is where the second point begins, or len(points). Numbers are the
// only strings in a point, so brackets are never inside of one.
func pointBehind(points []byte) int {
	depth := 0
	for i := 0; i < len(points); i++ {
		switch points[i] {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				if next := bytes.IndexByte(points[i:], '['); next >= 0 {
					return i + next
				}
				return len(points)
			}
		}
	}
	return len(points)
}

// lastPoint is where the last point begins.
func lastPoint(points []byte) int {
	depth := 0
	for i := len(points) - 1; i >= 0; i-- {
		switch points[i] {
		case ']':
			depth++
		case '[':
			if depth--; depth <= 0 {
				return i
			}
		}
	}
	return 0
}
