package export

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// join joins the parts to the result, renames it, and removes the parts.
func (r *run) join(ctx context.Context, st *state) error {
	output := strings.TrimRight(r.opts.Output, "/")
	parts := st.parts()
	switch {
	case r.opts.Format == Blocks:
		// The state is removed last, so that Resume can continue after any failure here.
		if err := os.Remove(output); err != nil && !errors.Is(err, fs.ErrNotExist) { // an empty directory: see checkOutput
			return err
		}
		err := errors.Join(st.fs.SyncDir(st.dir), os.Rename(st.dir, output), st.fs.SyncDir(filepath.Dir(output)))
		if err != nil {
			return err
		}
		return endBlocks(st, output)
	case len(parts) == 1 && r.opts.Format != OpenMetrics: // the part is the complete file
		if err := os.Rename(parts[0], output); err != nil {
			return err
		}
	default:
		if err := r.joinInto(ctx, filepath.Join(st.dir, "joined.tmp"), output, parts); err != nil {
			return err
		}
	}
	return errors.Join(st.fs.SyncDir(filepath.Dir(output)), st.remove())
}

// endBlocks removes the state from a completed directory of blocks.
func endBlocks(st *state, output string) error {
	st.close()
	return errors.Join(os.Remove(filepath.Join(output, stateName)), st.fs.SyncDir(output))
}

// renamed reports whether an earlier run was stopped after it had renamed the directory of the
// blocks to the name of the output: only the state is still to be removed from it.
func (r *run) renamed() bool {
	if r.opts.Format != Blocks || !r.opts.Resume {
		return false
	}
	_, errPartial := os.Stat(PartialDir(r.opts.Output))
	_, errState := os.Stat(filepath.Join(r.opts.Output, stateName))
	return errors.Is(errPartial, fs.ErrNotExist) && errState == nil
}

func (r *run) joinInto(ctx context.Context, tmp, output string, parts []string) (err error) {
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the file is incomplete
		}
	}()
	w := bufio.NewWriterSize(f, bufferBytes)
	switch r.opts.Format {
	case Parquet:
		err = joinParquet(ctx, w, parts)
	case OpenMetrics:
		err = joinOpenMetrics(ctx, w, parts, filepath.Dir(tmp))
	default:
		err = concatenate(ctx, f, parts)
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	r.sum.BytesWritten = info.Size()
	return os.Rename(tmp, output)
}

// concatenate joins parts that consist of lines. The kernel copies between files.
func concatenate(ctx context.Context, w *os.File, parts []string) error {
	for _, path := range parts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
