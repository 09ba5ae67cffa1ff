package store

import (
	"fmt"
	"syscall"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
)

// reserveShare limits the reserve on a small disk to a tenth of it.
const reserveShare = 10

// checkSpace returns an error while the disk has too little free space for pushes. The
// remaining space is reserved for samples: on a disk that profiles have filled, the TSDB would
// reject them.
func (s *Store) checkSpace() error {
	if s.opts.FreeBytesMin <= 0 {
		return nil
	}
	free, total, err := files.Space(s.opts.Dir)
	if err != nil {
		return nil // the write itself returns the error of the directory
	}
	if reserve := min(s.opts.FreeBytesMin, total/reserveShare); free < reserve {
		return fmt.Errorf("%w: a push cannot be written to the disk: %w: %d bytes are free, %d are reserved for samples%s",
			profiles.ErrUnavailable, syscall.ENOSPC, free, reserve, s.opts.Flags.Of("FreeBytesMin"))
	}
	return nil
}
