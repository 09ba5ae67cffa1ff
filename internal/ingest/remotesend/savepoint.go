package remotesend

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ferula-io/ferula/internal/files"
)

// position is a place in the write-ahead log: what is before offset in the segment, and all earlier segments.
type position struct {
	segment int
	offset  int64
}

func (p position) before(q position) bool {
	return p.segment < q.segment || p.segment == q.segment && p.offset < q.offset
}

// savepoints are the positions up to which every sample was sent or refused, by queue, and their file:
//
//	remote_write savepoints 1
//	<segment> <offset> <quoted queue>      for each queue
//	crc <checksum of the lines before>     eight hexadecimal digits, CRC-32 Castagnoli
//
// The file is replaced as a whole. A nil *savepoints keeps nothing.
type savepoints struct {
	path string

	mu     sync.Mutex
	queues map[string]position
}

const (
	savepointHeader = "remote_write savepoints 1\n"
	savepointFile   = "savepoints"
	sectionsDir     = "remote_write" // below the directory of the storage
	idleDir         = "idle"         // below sectionsDir
	savepointMax    = 1 << 20        // bytes of the file
)

var (
	errSavepoints = errors.New("damaged, or written by a newer version")
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

// loadSavepoints reads the file in dir. After an error the savepoints are empty. A file that does not exist is no
// error.
func loadSavepoints(dir string) (*savepoints, error) {
	s := &savepoints{path: filepath.Join(dir, savepointFile), queues: map[string]position{}}
	info, err := os.Stat(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil && info.Size() > savepointMax {
		err = errSavepoints
	}
	var content []byte
	if err == nil {
		content, err = files.ReadFile(s.path)
	}
	if err == nil {
		var queues map[string]position
		if queues, err = parseSavepoints(content); err == nil {
			s.queues = queues
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", s.path, err)
	}
	return s, err
}

func formatSavepoints(queues map[string]position) []byte {
	b := []byte(savepointHeader)
	for _, key := range slices.Sorted(maps.Keys(queues)) {
		b = fmt.Appendf(b, "%d %d %q\n", queues[key].segment, queues[key].offset, key)
	}
	return fmt.Appendf(b, "crc %08x\n", crc32.Checksum(b, castagnoli))
}

func parseSavepoints(content []byte) (map[string]position, error) {
	lines, ok := strings.CutPrefix(string(content), savepointHeader)
	end := strings.LastIndex(lines, "crc ")
	if !ok || end < 0 {
		return nil, errSavepoints
	}
	queues := map[string]position{}
	for line := range strings.Lines(lines[:end]) {
		segment, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		offset, quoted, _ := strings.Cut(rest, " ")
		n, err1 := strconv.ParseUint(segment, 10, 31)
		at, err2 := strconv.ParseUint(offset, 10, 62)
		key, err3 := strconv.Unquote(quoted)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("%w: %q", errSavepoints, line)
		}
		queues[key] = position{int(n), int64(at)}
	}
	// Whatever was accepted above, the file is exactly what these positions are written as.
	if !bytes.Equal(content, formatSavepoints(queues)) {
		return nil, errSavepoints
	}
	return queues, nil
}

func (s *savepoints) get(key string) (position, bool) {
	if s == nil {
		return position{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.queues[key]
	return p, ok
}

// adopt gives a queue without a savepoint the first one of the queues to its URL that are no longer wanted. The key of
// one of several sections with the same URL changes with its settings.
func (s *savepoints) adopt(key, url string, wanted map[string]bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.queues[key]; ok {
		return
	}
	for other, p := range s.queues {
		if wanted[other] || other != url && !strings.HasPrefix(other, url+" ") {
			continue
		}
		if first, ok := s.queues[key]; !ok || p.before(first) {
			s.queues[key] = p
		}
	}
}

// set makes the position of a queue durable.
func (s *savepoints) set(key string, p position) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[key] = p
	return s.write()
}

// retain removes the savepoints of all other queues, and returns their keys.
func (s *savepoints) retain(keys map[string]bool) (others []string, err error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.queues {
		if !keys[key] {
			others = append(others, key)
			delete(s.queues, key)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	return others, s.write()
}

func (s *savepoints) write() error {
	if err := files.WriteFile(files.Disk{}, s.path, formatSavepoints(s.queues)); err != nil {
		return fmt.Errorf("savepoints of remote_write: %w", err)
	}
	return nil
}
