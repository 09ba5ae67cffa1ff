package tsdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ferula-io/ferula/internal/files"
)

// emptyChunkFile is a file of mapped chunks that has none: magic number, version, padding.
var emptyChunkFile = []byte{0x01, 0x30, 0xBC, 0x91, 1, 0, 0, 0}

// keepChunkNumbers keeps the database from losing late samples that arrive after a start.
//
// The head remembers the last mapped chunk that a compaction of late samples has written to a block, and takes chunks
// with lower references for old: they are not read, and the next truncation drops them. If no chunk was written since
// the start, such a compaction deletes all files of chunks, and numbers the next one 1 again: late samples after it are
// lost. The database never deletes file 0, and so no other file of the same number, before it writes the first chunk.
//
// While the log of late samples has records, files keep their numbers, because records name them. Then the next
// compaction writes a chunk first.
//
// The cause is in chunks.ChunkDiskMapper.Truncate. TestLibrary_TakesNewChunksForOldOnes fails when it is gone.
func (s *Store) keepChunkNumbers() error {
	dir := filepath.Join(s.opts.Dir, "chunks_head")
	entries, err := os.ReadDir(dir) // sorted by name, which has six digits or more
	if err != nil {
		return nil // there are no chunks yet, or tsdb.Open returns the error
	}
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) == 0 || numbers[0] == 0 {
		return nil
	}
	for path := range s.segmentBytes() {
		if filepath.Dir(path) == s.logDirs()[1] && numbers[0] > 1 {
			return nil
		}
	}
	name := func(n int) string { return filepath.Join(dir, fmt.Sprintf("%06d", n)) }
	for i, n := range numbers { // ascending: a start after a kill in between goes on here
		err = errors.Join(err, os.Rename(name(n), name(i+1)))
	}
	return errors.Join(err, files.WriteFile(files.Disk{}, name(0), emptyChunkFile))
}
