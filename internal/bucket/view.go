package bucket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// view holds the chunks and the index of a block open. The database never changes these files, it
// only deletes them. An open file can be read after its deletion, so an upload that takes hours reads
// all files of the block. Thanos uses hard links instead, which need a writable directory on the same
// disk.
type view struct {
	meta  blockMeta
	files []viewFile // chunk segments in order, then the index
}

type viewFile struct {
	blockFile
	file *os.File
}

// openView opens the block in a directory. The caller closes it.
func openView(dir string) (_ *view, err error) {
	v := &view{}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if v.meta, err = readMeta(dir); err != nil {
		return nil, err
	}
	segments, err := os.ReadDir(filepath.Join(dir, chunksDir))
	if err != nil {
		return nil, err
	}
	for _, segment := range segments { // sorted by name
		if err = v.open(dir, chunksDir+"/"+segment.Name()); err != nil {
			return nil, err
		}
	}
	if err = v.open(dir, indexFile); err != nil {
		return nil, err
	}
	return v, nil
}

// readMeta reads the meta.json of a block's directory. Its ULID must be the directory's name.
func readMeta(dir string) (blockMeta, error) {
	text, err := os.ReadFile(filepath.Join(dir, metaFile))
	if err != nil {
		return blockMeta{}, err
	}
	m, err := parseMeta(text)
	if err == nil && m.ID.String() != filepath.Base(dir) {
		err = fmt.Errorf("%w: %s names block %s", ErrCorrupt, metaFile, m.ID)
	}
	return m, err
}

func (v *view) open(dir, name string) error {
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	v.files = append(v.files, viewFile{blockFile: blockFile{name: name}, file: f})
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return fmt.Errorf("%w: %s is not a file, or is empty", ErrCorrupt, name)
	}
	v.files[len(v.files)-1].size = info.Size()
	return nil
}

func (v *view) addHashes(ctx context.Context) error {
	for i := range v.files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, io.NewSectionReader(v.files[i].file, 0, v.files[i].size)); err != nil {
			return fmt.Errorf("%s: %w", v.files[i].name, err)
		}
		v.files[i].hash = hex.EncodeToString(sum.Sum(nil))
	}
	return nil
}

func (v *view) list() []blockFile {
	list := make([]blockFile, len(v.files))
	for i, f := range v.files {
		list[i] = f.blockFile
	}
	return list
}

func (v *view) close() {
	for _, f := range v.files {
		_ = f.file.Close() // it was only read
	}
}

// errStalled is the cause of the cancellation of an upload without progress.
var errStalled = errors.New("upload stalled")

// progressReader starts the timer again with every read. ReadAt and ObjectSize let the S3 client
// send parts from disk without buffering them.
type progressReader struct {
	*io.SectionReader
	stall   time.Duration
	stalled *time.Timer
}

// Read implements io.Reader.
func (m *progressReader) Read(p []byte) (int, error) {
	m.stalled.Reset(m.stall)
	return m.SectionReader.Read(p)
}

func (m *progressReader) ReadAt(p []byte, at int64) (int, error) {
	m.stalled.Reset(m.stall)
	return m.SectionReader.ReadAt(p, at)
}

// ObjectSize implements objstore.ObjectSizer.
func (m *progressReader) ObjectSize() (int64, error) { return m.Size(), nil }

// send uploads size bytes by calling put. It cancels the context of put if put reads nothing for
// stall. A slow object store is tolerated, one that hangs is not.
func send(ctx context.Context, from io.ReaderAt, size int64, stall time.Duration,
	put func(context.Context, io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w: no data was read for %s", errStalled, stall)) })
	defer stalled.Stop()
	err := put(ctx, &progressReader{io.NewSectionReader(from, 0, size), stall, stalled})
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}
