package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	stateName = "state"
	stateHead = "ferula read 1"
	noBlock   = "-" // name of a window without samples
)

// done is a written window.
type done struct {
	window                       int
	series, samples, bytes, left int64
	name                         string // name of the part
}

// state is the folder of an unfinished export:
//
//	ferula read 1
//	request "…"
//	range STARTMS ENDMS
//	done WINDOW SERIES SAMPLES BYTES LEFT NAME     (one line per window, in order)
//
// A line is written after its part is synced. Files without a line are left over from a
// killed run.
type state struct {
	dir            string
	startMS, endMS int64
	done           []done
	file           *os.File
}

// openState creates a folder, or continues one. In the folder of a result (named) nothing is
// removed.
func openState(dir string, opts Options, named bool) (*state, error) {
	st := &state{dir: dir, startMS: opts.StartMS, endMS: opts.EndMS}
	path := filepath.Join(dir, stateName)
	var err error
	switch st.file, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0); {
	case errors.Is(err, fs.ErrNotExist):
		err = st.create(opts)
	case err != nil:
		return nil, err
	case !opts.Resume:
		err = fmt.Errorf("%w: %s has an unfinished export: continue with --resume, or remove it", ErrOptions, dir)
	default:
		if err = st.resume(opts.Request, named); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// stateBytesMax is far more than the lines of windowsMax windows.
const stateBytesMax = 64 << 20

// resume continues after the last complete line of the state.
func (s *state) resume(request string, named bool) error {
	if err := s.lock(); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(s.file, stateBytesMax))
	if err != nil {
		return err
	}
	whole, err := s.parse(string(text), request)
	if err != nil {
		return err
	}
	if named {
		return nil
	}
	if err := s.tidy(); err != nil {
		return err
	}
	return s.file.Truncate(int64(whole)) // an incomplete line
}

// lock prevents a second run while the file is open.
func (s *state) lock() error {
	if err := syscall.Flock(int(s.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%w: another run is writing to %s: %w", ErrOptions, s.dir, err)
	}
	return nil
}

// create writes the head of the state under a temporary name first, so that it is complete
// or missing.
func (s *state) create(opts Options) (err error) {
	if err := os.MkdirAll(s.dir, 0o777); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, stateName)
	for _, entry := range entries {
		if entry.Name() != stateName+".tmp" {
			return fmt.Errorf("%w: %s has %s and is not an unfinished export", ErrOptions, s.dir, entry.Name())
		}
	}
	if s.file, err = os.OpenFile(path+".tmp", os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o666); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.file, "%s\nrequest %q\nrange %d %d\n", stateHead, opts.Request, s.startMS, s.endMS); err != nil {
		return err
	}
	if err := errors.Join(s.lock(), s.file.Sync()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return errors.Join(syncDir(s.dir), syncDir(filepath.Dir(s.dir)))
}

// parse returns the size of the complete lines.
func (s *state) parse(text, request string) (whole int, err error) {
	corrupt := func(line string) error { return fmt.Errorf("%w: invalid line %q: remove the folder", ErrOptions, line) }
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		switch i {
		case 0:
			if line != stateHead+"\n" {
				return 0, corrupt(line)
			}
		case 1:
			var was string
			if _, err := fmt.Sscanf(line, "request %q\n", &was); err != nil {
				return 0, corrupt(line)
			}
			if was != request {
				return 0, fmt.Errorf("%w: the unfinished export is of another request: %s, not %s", ErrOptions, was, request)
			}
		case 2:
			if _, err := fmt.Sscanf(line, "range %d %d\n", &s.startMS, &s.endMS); err != nil {
				return 0, corrupt(line)
			}
		default:
			var d done
			if _, err := fmt.Sscanf(line, "done %d %d %d %d %d %s\n", &d.window, &d.series, &d.samples, &d.bytes, &d.left, &d.name); err != nil || d.window != len(s.done) || strings.ContainsAny(d.name, "/") || strings.HasPrefix(d.name, ".") {
				return 0, corrupt(line)
			}
			s.done = append(s.done, d)
		}
		whole += len(line)
	}
	if len(lines) < 4 {
		return 0, corrupt(text)
	}
	return whole, nil
}

// tidy removes files without a line in the state.
func (s *state) tidy() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		named := entry.Name() == stateName || slices.ContainsFunc(s.done, func(d done) bool { return d.name == entry.Name() })
		if !named {
			if err := os.RemoveAll(filepath.Join(s.dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// check verifies that the parts are unchanged.
func (s *state) check(windows int) error {
	if len(s.done) > windows {
		return fmt.Errorf("%w: %d windows are done of %d", ErrOptions, len(s.done), windows)
	}
	for _, d := range s.done {
		if d.name == noBlock {
			continue
		}
		info, err := os.Stat(filepath.Join(s.dir, d.name))
		if err != nil {
			return err
		}
		if !info.IsDir() && info.Size() != d.bytes {
			return fmt.Errorf("%w: %s has %d bytes, it had %d", ErrOptions, d.name, info.Size(), d.bytes)
		}
	}
	return nil
}

func (s *state) add(d done) error {
	if _, err := fmt.Fprintf(s.file, "done %d %d %d %d %d %s\n", d.window, d.series, d.samples, d.bytes, d.left, d.name); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.done = append(s.done, d)
	return nil
}

func (s *state) close() {
	if s.file != nil {
		_ = s.file.Close() // every line was synced
		s.file = nil
	}
}

// remove removes the folder.
func (s *state) remove() error {
	s.close()
	return os.RemoveAll(s.dir)
}

// parts returns the paths of the windows' parts, in order.
func (s *state) parts() []string {
	var paths []string
	for _, d := range s.done {
		if d.name != noBlock {
			paths = append(paths, filepath.Join(s.dir, d.name))
		}
	}
	return paths
}
