package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles/block"
)

// errIrregular is the error of a FIFO, a socket or a device among the files. Reading it could block.
var errIrregular = errors.New("it is not a regular file")

type checkProfilesCommand struct {
	Dirs []string `arg:"" name:"dir" help:"Directories with profile blocks: of a server (--storage.tsdb.path or --storage.profiles.path), of a tenant, or of one block."`
}

// Run is called by kong.
func (cmd *checkProfilesCommand) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := newChecker()
	for _, dir := range cmd.Dirs {
		if err := c.profileBlocks(ctx, dir); err != nil {
			c.report(dir, "", err)
		}
	}
	return c.result(false)
}

// profileBlocks checks all profile blocks in a directory, at any depth.
func (c *checker) profileBlocks(ctx context.Context, dir string) error {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	blocks := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil // a running server has removed it
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case entry.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice|fs.ModeIrregular) != 0:
			c.report(path, "", errIrregular)
			return nil
		case !entry.IsDir() || !isProfileBlock(path):
			return nil
		}
		found, err := block.Verify(ctx, path)
		if err != nil && path != root {
			if _, gone := os.Stat(path); errors.Is(gone, fs.ErrNotExist) {
				return fs.SkipDir
			}
		}
		blocks++
		at := func(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }
		summary := fmt.Sprintf("%d rows of %d profiles from %s to %s, level %d", found.Rows, found.Profiles, at(found.MinNS),
			at(found.MaxNS), found.Level)
		c.report(path, summary, err)
		return nil // there may be irregular files in it
	})
	if err == nil && blocks == 0 {
		err = errors.New("no profile blocks")
	}
	return err
}

// isProfileBlock reports whether a directory has the name of a block and a file of a profile block. A block of samples
// has a file named index as well, but only a block of samples has meta.json.
func isProfileBlock(path string) bool {
	if _, err := ulid.ParseStrict(filepath.Base(path)); err != nil {
		return false
	}
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(path, name))
		return err == nil
	}
	return !has("meta.json") && (has(block.IndexFile) || has(block.RowsFile))
}
