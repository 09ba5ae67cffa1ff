package series

import (
	"slices"

	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Merge merges sets into one. A series that several sets have is returned once with the
// chunks of all of them, sorted by start. Chunks with identical bytes are returned once;
// chunks that only overlap are returned as they are.
//
// A few sets are merged by a linear search for the least label set: blocks of one database
// have most series in common, so a heap would need more comparisons. Many sets are merged
// by a winner tree.
func Merge(sets ...Set) Set {
	switch {
	case len(sets) == 0:
		return Failed(nil)
	case len(sets) == 1:
		return sets[0]
	case len(sets) > linearMax:
		return newWinnerTree(sets)
	}
	return &merge{sets: sets, waiting: slices.Clone(sets), least: make([]Set, 0, len(sets))}
}

type merge struct {
	sets    []Set
	waiting []Set // sets that have not ended; it includes the sets in least
	least   []Set // sets that have the current series of the merge
	started bool
	chunks  []Chunk
	err     error
}

func (m *merge) Next() bool {
	if m.err != nil {
		return false
	}
	if !m.started {
		m.started = true
		m.waiting = m.waiting[:0]
		for _, set := range m.sets {
			if !m.advance(set) {
				return false
			}
		}
	} else {
		for _, set := range m.least {
			if !set.Next() {
				if m.err = set.Err(); m.err != nil {
					return false
				}
				i := slices.Index(m.waiting, set)
				m.waiting = slices.Delete(m.waiting, i, i+1)
			}
		}
	}
	m.least = m.least[:0]
	for _, set := range m.waiting {
		c := -1
		if len(m.least) > 0 {
			c = labelenc.Compare(set.Labels(), m.least[0].Labels())
		}
		if c < 0 {
			m.least = m.least[:0]
		}
		if c <= 0 {
			m.least = append(m.least, set)
		}
	}
	if len(m.least) == 0 {
		return false
	}
	m.join()
	return true
}

func (m *merge) advance(set Set) bool {
	if set.Next() {
		m.waiting = append(m.waiting, set)
		return true
	}
	m.err = set.Err()
	return m.err == nil
}

// join collects the chunks of the current series.
func (m *merge) join() {
	m.chunks = m.chunks[:0]
	for _, set := range m.least {
		m.chunks = append(m.chunks, set.Chunks()...)
	}
	m.chunks = Tidy(m.chunks)
}

// Tidy sorts chunks and removes duplicates, in place.
func Tidy(chunks []Chunk) []Chunk {
	for i := 1; i < len(chunks); i++ {
		if CompareChunks(chunks[i-1], chunks[i]) >= 0 {
			slices.SortStableFunc(chunks, CompareChunks)
			return slices.CompactFunc(chunks, func(a, b Chunk) bool { return CompareChunks(a, b) == 0 })
		}
	}
	return chunks
}

func (m *merge) Labels() []byte  { return m.least[0].Labels() }
func (m *merge) Chunks() []Chunk { return m.chunks }
func (m *merge) Err() error      { return m.err }

func (m *merge) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, set := range m.sets {
		all.Merge(set.Warnings())
	}
	return all
}
