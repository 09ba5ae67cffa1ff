package tsdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/blocks/summaries"
)

// mappedIdle is the minimum time for which the files of a block stay mapped after their last reader was closed. It
// is also the interval of sweeps.
const mappedIdle = time.Minute

// mapped is a second mapping of the files of one block, since the database's own mapping is
// not accessible. Both mappings share the pages in memory. A block can be deleted while this
// mapping is read: its files are unlinked, and freed when the mapping is closed.
type mapped struct {
	files    []*fileutil.MmapFile
	index    *blockIndex
	postings *index.Reader // reads the same bytes
	segments segments
	// summaries of chunks; nil: none. Its file is one of files, even after it was set to nil.
	summaries atomic.Pointer[summaries.Reader]

	readers int // guarded by mappings.mu, as is idleAt
	idleAt  time.Time
}

// mapBlock maps the block in dir. It returns errForeign for an unknown version of the index.
func mapBlock(dir string) (_ *mapped, err error) {
	m := &mapped{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	bytes, err := m.open(filepath.Join(dir, "index"))
	if err != nil {
		return nil, err
	}
	if m.index, err = newBlockIndex(bytes); err != nil {
		return nil, err
	}
	if m.postings, err = index.NewReader(byteSlice(bytes), index.DecodePostingsRaw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "chunks"))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if _, err := strconv.ParseUint(entry.Name(), 10, 64); err != nil {
			continue
		}
		bytes, err := m.open(filepath.Join(dir, "chunks", entry.Name()))
		if err != nil {
			return nil, err
		}
		m.segments = append(m.segments, bytes)
	}
	return m, nil
}

func (m *mapped) open(path string) ([]byte, error) {
	file, err := fileutil.OpenMmapFile(path)
	if err != nil {
		return nil, err
	}
	m.files = append(m.files, file)
	return file.Bytes(), nil
}

func (m *mapped) close() error {
	var errs []error
	for _, file := range m.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// mappings are the mapped blocks of a store, by directory. A mapping without readers is closed by
// one of three calls: by sweep, after it was idle for mappedIdle; by prune, which every new reader
// of the store calls, after its block was deleted; or by close, with the store.
type mappings struct {
	sides  *sideFiles // nil: none
	mu     sync.Mutex
	byDir  map[string]*mapped
	timer  *time.Timer
	closed bool
}

// acquire maps the block in dir, or shares its mapping. During the call the caller must hold
// an open reader of the block, so that its directory exists. The caller must release the
// mapping.
func (p *mappings) acquire(dir string) (*mapped, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrNotReady
	}
	m := p.byDir[dir]
	if m == nil {
		var err error
		if m, err = mapBlock(dir); err != nil {
			return nil, fmt.Errorf("block %s: %w", filepath.Base(dir), err)
		}
		if p.byDir == nil {
			p.byDir = map[string]*mapped{}
		}
		p.byDir[dir] = m
		p.sides.attach(dir, m)
	}
	m.readers++
	return m, nil
}

// attach opens the file with summaries of a block that is mapped already.
func (p *mappings) attach(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.byDir[dir]; m != nil {
		p.sides.attach(dir, m)
	}
}

// release releases a mapping. gone means that its block is no longer served.
func (p *mappings) release(dir string, m *mapped, gone bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.readers--
	if m.readers > 0 {
		return nil
	}
	if gone || p.closed {
		delete(p.byDir, dir)
		return m.close()
	}
	m.idleAt = time.Now()
	if p.timer == nil {
		p.timer = time.AfterFunc(mappedIdle, p.sweep)
	}
	return nil
}

// prune closes the mappings of blocks that are no longer served.
func (p *mappings) prune(served []*tsdb.Block) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for dir, m := range p.byDir {
		if m.readers == 0 && !slices.ContainsFunc(served, func(b *tsdb.Block) bool { return b.Dir() == dir }) {
			delete(p.byDir, dir)
			errs = append(errs, m.close())
		}
	}
	return errors.Join(errs...)
}

// sweep closes mappings that have been idle. Errors of unmapping are ignored.
func (p *mappings) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	for dir, m := range p.byDir {
		if m.readers == 0 && time.Since(m.idleAt) >= mappedIdle {
			delete(p.byDir, dir)
			_ = m.close()
		}
	}
	if len(p.byDir) > 0 && !p.closed {
		p.timer = time.AfterFunc(mappedIdle, p.sweep)
	}
}

// close closes every mapping without readers. The others are closed by their last release.
func (p *mappings) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	var errs []error
	for dir, m := range p.byDir {
		if m.readers == 0 {
			delete(p.byDir, dir)
			errs = append(errs, m.close())
		}
	}
	return errors.Join(errs...)
}
