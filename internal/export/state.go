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

	vfs "github.com/ferula-io/ferula/internal/files"
)

const (
	stateName = "state"
	stateHead = "ferula read 1"
	noBlock   = "-" // name of a window without samples
)

// done is a completed window, as a line of the state has it.
type done struct {
	window                          int
	series, samples, bytes, skipped int64
	name                            string // name of the part
}

// state is the directory of an unfinished export:
//
//	ferula read 1
//	request "…"
//	range STARTMS ENDMS
//	done WINDOW SERIES SAMPLES BYTES SKIPPED NAME  (one line per window, in order)
//
// A line is written after its part is synced. Files without a line are left over from a
// killed run.
type state struct {
	dir            string
	startMS, endMS int64
	done           []done
	fs             vfs.FS
	file           vfs.File  // the state file, open for further lines
	locked         io.Closer // of the directory
}

// openState creates the directory of an export or, with Resume, opens the existing one.
// renamed is the result of run.renamed: if true, dir is the output, and nothing in it is removed.
func openState(files vfs.FS, dir string, opts Options, renamed bool) (*state, error) {
	st := &state{dir: dir, startMS: opts.StartMS, endMS: opts.EndMS, fs: files}
	path := filepath.Join(dir, stateName)
	_, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = st.create(opts)
	case err != nil:
		return nil, err
	case !opts.Resume:
		err = fmt.Errorf("%w: %s has an unfinished export: continue with --resume, or remove it", ErrOptions, dir)
	default:
		if err = st.resume(opts.Request, renamed); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// stateBytesMax limits the size of the state. windowsMax windows need much less.
const stateBytesMax = 64 << 20

// resume continues after the last complete line of the state.
func (s *state) resume(request string, renamed bool) error {
	if err := s.lock(); err != nil {
		return err
	}
	text, err := s.read()
	if err != nil {
		return err
	}
	whole, err := s.parse(string(text), request)
	if err != nil {
		return err
	}
	if renamed {
		return nil
	}
	if err := s.tidy(); err != nil {
		return err
	}
	return s.begin(text[:whole]) // without an incomplete line
}

func (s *state) read() ([]byte, error) {
	f, err := os.Open(filepath.Join(s.dir, stateName))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, stateBytesMax+1))
	if len(text) > stateBytesMax {
		err = fmt.Errorf("%w: more than %d bytes: remove the directory", ErrOptions, stateBytesMax)
	}
	return text, errors.Join(err, f.Close())
}

// lock prevents a second run while the directory is open.
func (s *state) lock() (err error) {
	if s.locked, err = vfs.LockDir(s.dir); errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%w: another run is writing to %s: %w", ErrOptions, s.dir, err)
	}
	return err
}

func (s *state) create(opts Options) error {
	parent := filepath.Dir(s.dir)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return err
	}
	if err := vfs.MakeDir(s.fs, s.dir); err != nil {
		return err
	}
	if err := s.lock(); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != stateName+".tmp" {
			return fmt.Errorf("%w: %s contains %s and is not an unfinished export", ErrOptions, s.dir, entry.Name())
		}
	}
	return s.begin(fmt.Appendf(nil, "%s\nrequest %q\nrange %d %d\n", stateHead, opts.Request, s.startMS, s.endMS))
}

// begin writes the first lines of the state under a temporary name, so that they are complete
// or missing. The file stays open for further lines.
func (s *state) begin(lines []byte) (err error) {
	path := filepath.Join(s.dir, stateName)
	if err := s.fs.RemoveAll(path + ".tmp"); err != nil {
		return err
	}
	if s.file, err = s.fs.Create(path + ".tmp"); err != nil {
		return err
	}
	if _, err := s.file.Write(lines); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	if err := s.fs.Rename(path+".tmp", path); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir)
}

// parse sets the range and the completed windows from the text of the state. It returns the length of
// the complete lines in bytes. It returns an error if the export is not of the given request.
func (s *state) parse(text, request string) (whole int, err error) {
	corrupt := func(line string) error {
		return fmt.Errorf("%w: invalid line %q: remove the directory", ErrOptions, line)
	}
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
				return 0, fmt.Errorf("%w: the unfinished export belongs to another request: %s, not %s", ErrOptions, was, request)
			}
		case 2:
			if _, err := fmt.Sscanf(line, "range %d %d\n", &s.startMS, &s.endMS); err != nil {
				return 0, corrupt(line)
			}
		default:
			var d done
			if _, err := fmt.Sscanf(line, "done %d %d %d %d %d %s\n", &d.window, &d.series, &d.samples, &d.bytes, &d.skipped,
				&d.name); err != nil || d.window != len(s.done) || strings.ContainsAny(d.name, "/") ||
				strings.HasPrefix(d.name, ".") {
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
			if err := s.fs.RemoveAll(filepath.Join(s.dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// check verifies that all parts exist, and that part files have the size noted in the state. windows
// is the number of windows of the export.
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
	if _, err := fmt.Fprintf(s.file, "done %d %d %d %d %d %s\n", d.window, d.series, d.samples, d.bytes, d.skipped,
		d.name); err != nil {
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
	if s.locked != nil {
		_ = s.locked.Close()
		s.locked = nil
	}
}

func (s *state) remove() error {
	s.close()
	return s.fs.RemoveAll(s.dir)
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
