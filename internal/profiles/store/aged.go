package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/files"
)

// agedName is a file next to the tenants, of which no directory begins with a dot. Its line has the ID of a boot of the
// machine, a time since this boot, and the time up to which blocks had aged then, both in ms. After a restart of the
// process, but not of the machine, blocks have aged by what has passed since, whatever the clock says. Without the
// file, with a damaged one and after a restart of the machine, they age from the newest block. So a process writes the
// file once.
const agedName = ".aged"

// bootClock returns the ID of the machine's boot and the time since then in ms, which the clock does not change. The ID
// is "" on systems other than Linux.
func bootClock() (boot string, sinceMS int64) {
	id, idErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	uptime, upErr := os.ReadFile("/proc/uptime")
	text, _, _ := strings.Cut(string(uptime), " ")
	seconds, err := strconv.ParseFloat(text, 64)
	if errors.Join(idErr, upErr, err) != nil {
		return "", 0
	}
	return strings.TrimSpace(string(id)), int64(seconds * 1000)
}

// resumeAged reads the file of an earlier process.
func (s *Store) resumeAged() {
	var boot string
	var sinceMS, agedMS int64
	content, _ := os.ReadFile(filepath.Join(s.root(), agedName)) // see agedName
	line, whole := strings.CutSuffix(string(content), "\n")
	n, _ := fmt.Sscanf(line, "%s %d %d", &boot, &sinceMS, &agedMS)
	if current, ms := s.booted(); whole && n == 3 && boot == current && sinceMS <= ms {
		s.agedFrom, s.agedResumed = agedMS+ms-sinceMS, true
	}
}

// keepAged writes the file for the next process, and reports whether it has nothing more to do.
func (s *Store) keepAged() bool {
	boot, sinceMS := s.booted()
	s.agedMu.Lock()
	from, resumed := s.agedFrom, s.agedResumed
	s.agedMu.Unlock()
	if resumed || boot == "" {
		return true
	}
	if from == 0 || !isClosed(s.replayed) {
		return false // there is no block yet, or a newer one may be opened
	}
	line := fmt.Sprintf("%s %d %d\n", boot, sinceMS, from+s.uptime().Milliseconds())
	if err := files.WriteFile(s.fs, filepath.Join(s.root(), agedName), []byte(line)); err != nil {
		s.logger.Warn("The age of profile blocks was not written: after a restart they age from the newest one", "err", err)
	}
	return true
}

// aged returns the time up to which blocks have aged: the time at which the newest block of Open was written, or the
// time that an earlier process had reached (see agedName), plus the time for which the store has been open since, but
// no later than now. So a clock that is ahead, at Open or suddenly, does not make all blocks older than the retention
// time.
func (s *Store) aged() time.Time {
	now := s.now()
	s.agedMu.Lock()
	defer s.agedMu.Unlock()
	if aged := time.UnixMilli(s.agedFrom).Add(s.uptime()); s.agedFrom != 0 && aged.Before(now) {
		return aged
	}
	return now
}

// sawBlock makes blocks age from the time of a block at the latest, unless resumeAged knows better. old means that the
// block was written before Open; another block counts only if it is the first, and until a tenant with an old one has
// been opened.
func (s *Store) sawBlock(id ulid.ULID, old bool) {
	s.agedMu.Lock()
	defer s.agedMu.Unlock()
	from := int64(id.Time()) - s.uptime().Milliseconds()
	if s.agedFrom == 0 || s.agedNew && old || old && !s.agedResumed && from > s.agedFrom {
		s.agedFrom, s.agedNew = from, !old
	}
}
