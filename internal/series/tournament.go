package series

import (
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// linearMax is up to how many sets Merge goes through all of them for each series.
const linearMax = 3

// tournament merges many sets: a tree of matches between pairs of sets, so that a
// series costs about log2(n) comparisons and not n.
//
// A tree of losers would store less, but replays only the path of the one set that
// won; here all the sets that gave the current series are moved at once, since what
// they gave is borrowed until then, and the matches that their paths share are
// played once. A match remembers whether it was a draw: a set that has the winner's
// series is found by following draws, without a further comparison.
type tournament struct {
	sets    []Set
	places  int      // of leaves, a power of two
	labels  [][]byte // of each place's series; nil: nothing more
	more    []bool
	winner  []int32 // of each match; match 1 is the final, 2i and 2i+1 lead to i
	draw    []bool
	dirty   []int
	least   []int32 // sets that gave the current series, ascending
	started bool
	chunks  []Chunk
	err     error
}

func newTournament(sets []Set) *tournament {
	places := 1
	for places < len(sets) {
		places *= 2
	}
	return &tournament{
		sets: sets, places: places,
		labels: make([][]byte, places), more: make([]bool, places),
		winner: make([]int32, places), draw: make([]bool, places),
		least: make([]int32, 0, len(sets)),
	}
}

func (t *tournament) Next() bool {
	if t.err != nil {
		return false
	}
	if t.started {
		for _, i := range t.least {
			if !t.advance(int(i)) {
				return false
			}
		}
		t.replay()
	} else {
		t.started = true
		for i := range t.sets {
			if !t.advance(i) {
				return false
			}
		}
		for match := t.places - 1; match >= 1; match-- {
			t.play(match)
		}
	}
	t.least = t.least[:0]
	first := t.champion(1)
	if !t.more[first] {
		return false
	}
	t.gather(1)
	t.join()
	return true
}

// advance moves a set; false is a failure.
func (t *tournament) advance(i int) bool {
	if t.more[i] = t.sets[i].Next(); t.more[i] {
		t.labels[i] = t.sets[i].Labels()
		return true
	}
	t.labels[i] = nil
	t.err = t.sets[i].Err()
	return t.err == nil
}

// champion is the set that came out of a match, or stands at a leaf.
func (t *tournament) champion(node int) int32 {
	if node >= t.places {
		return int32(node - t.places)
	}
	return t.winner[node]
}

func (t *tournament) play(match int) {
	a, b := t.champion(2*match), t.champion(2*match+1)
	t.draw[match] = false
	switch {
	case !t.more[b]:
		t.winner[match] = a
	case !t.more[a]:
		t.winner[match] = b
	default:
		switch c := labelenc.Compare(t.labels[a], t.labels[b]); {
		case c < 0:
			t.winner[match] = a
		case c > 0:
			t.winner[match] = b
		default:
			t.winner[match], t.draw[match] = a, true
		}
	}
}

// replay plays the matches above the sets that were moved, level by level.
func (t *tournament) replay() {
	t.dirty = t.dirty[:0]
	for _, i := range t.least {
		t.dirty = append(t.dirty, t.places+int(i))
	}
	for t.dirty[0] > 1 {
		n := 0
		for _, node := range t.dirty {
			match := node / 2
			if n > 0 && t.dirty[n-1] == match {
				continue
			}
			t.dirty[n] = match
			n++
			t.play(match)
		}
		t.dirty = t.dirty[:n]
	}
}

// gather adds the sets below a node that have the series of its champion.
func (t *tournament) gather(node int) {
	for node < t.places {
		if t.draw[node] {
			t.gather(2 * node)
			node = 2*node + 1
			continue
		}
		if t.champion(2*node) == t.winner[node] {
			node = 2 * node
		} else {
			node = 2*node + 1
		}
	}
	t.least = append(t.least, int32(node-t.places))
}

func (t *tournament) join() {
	if len(t.least) == 1 {
		t.chunks = append(t.chunks[:0], t.sets[t.least[0]].Chunks()...)
		return
	}
	t.chunks = t.chunks[:0]
	for _, i := range t.least {
		t.chunks = append(t.chunks, t.sets[i].Chunks()...)
	}
	t.chunks = tidy(t.chunks)
}

func (t *tournament) Labels() []byte  { return t.labels[t.least[0]] }
func (t *tournament) Chunks() []Chunk { return t.chunks }
func (t *tournament) Err() error      { return t.err }

func (t *tournament) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, set := range t.sets {
		all.Merge(set.Warnings())
	}
	return all
}
