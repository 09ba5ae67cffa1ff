package profile

import (
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/ferula-io/ferula/internal/series/profiles"
)

// reserveShare is the largest part of a small disk that pushes leave free: a tenth.
const reserveShare = 10

// checkSpace refuses pushes while the disk has too little free space. What profiles leave free is for
// others, such as samples, which would be refused on a disk that profiles have filled.
func (s *Store) checkSpace() error {
	if s.opts.FreeBytesMin <= 0 {
		return nil
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(filepath.Clean(s.opts.Dir), &stat); err != nil {
		return nil // the write itself returns what is wrong with the folder
	}
	free, total := int64(stat.Bavail)*int64(stat.Bsize), int64(stat.Blocks)*int64(stat.Bsize)
	if reserve := min(s.opts.FreeBytesMin, total/reserveShare); free < reserve {
		return fmt.Errorf("%w: they cannot be written to the disk: %w: %d bytes are free, and %d are kept free for samples%s",
			profiles.ErrUnavailable, syscall.ENOSPC, free, reserve, s.opts.Flags.Of("FreeBytesMin"))
	}
	return nil
}
