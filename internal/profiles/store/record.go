package store

import (
	"encoding/binary"
	"fmt"

	"github.com/ferula-io/ferula/internal/profiles"
)

// A record of the log is one push. After a crash the log has all of it or nothing.
//
//	record    u8 1 | profile*
//	profile   id 16 | i64 time | uvarint len labels | uvarint len pprof
const recordVersion = 1

func appendRecord(dst []byte, pushed []profiles.RawProfile) []byte {
	dst = append(dst, recordVersion)
	for i := range pushed {
		p := &pushed[i]
		dst = append(dst, p.ID[:]...)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(p.TimeNS))
		dst = append(binary.AppendUvarint(dst, uint64(len(p.Labels))), p.Labels...)
		dst = append(binary.AppendUvarint(dst, uint64(len(p.Raw))), p.Raw...)
	}
	return dst
}

// readRecord calls f with each profile, which aliases the record.
func readRecord(record []byte, f func(p *profiles.RawProfile) error) error {
	if len(record) == 0 || record[0] == 0 {
		return fmt.Errorf("%w: record without a version", profiles.ErrCorrupt)
	}
	if record[0] > recordVersion {
		return fmt.Errorf("%w: record of version %d", profiles.ErrNewer, record[0])
	}
	for b := record[1:]; len(b) > 0; {
		if len(b) < 24 {
			return fmt.Errorf("%w: record is cut short", profiles.ErrCorrupt)
		}
		p := profiles.RawProfile{ID: profiles.ID(b[:16]), TimeNS: int64(binary.LittleEndian.Uint64(b[16:]))}
		var ok bool
		if p.Labels, b, ok = prefixed(b[24:]); !ok {
			return fmt.Errorf("%w: labels of a record are cut short", profiles.ErrCorrupt)
		}
		if p.Raw, b, ok = prefixed(b); !ok {
			return fmt.Errorf("%w: profile of a record is cut short", profiles.ErrCorrupt)
		}
		if err := f(&p); err != nil {
			return err
		}
	}
	return nil
}

func prefixed(b []byte) (field, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}
