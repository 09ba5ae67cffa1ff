package metas

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"
)

// metaBytesMax is the size limit of a meta.json or a mark.
const metaBytesMax = 16 << 20

// Options of a Lister. Zero values take the defaults.
type Options struct {
	Rules       Rules
	Concurrency int    // requests at once; 0: 32
	Recursive   bool   // list all objects of the bucket instead of looking for each block's files
	Dir         string // folder of the snapshot; "": none
	Logger      *slog.Logger
}

// Lister lists the blocks of a bucket. Use NewLister.
type Lister struct {
	from objstore.BucketReader
	opts Options

	mu    sync.Mutex // one list at a time
	known map[ulid.ULID]*Meta

	forgetting sync.Mutex
	forgotten  []ulid.ULID // to be read again by the next list
}

// Result is one list.
type Result struct {
	Blocks  map[ulid.ULID]*Meta // to be served
	States  map[string]int      // number of blocks by Thanos' name of their state
	Corrupt map[ulid.ULID]error // blocks with an invalid meta.json
}

// The states of blocks in Result.States, by Thanos' names.
const (
	loaded      = "loaded"
	noMeta      = "no-meta-json"
	corrupted   = "corrupted-meta-json"
	failed      = "failed"
	timeExclude = "time-excluded"
	labelExcl   = "label-excluded"
	tooFresh    = "too-fresh"
	marked      = "marked-for-deletion"
	duplicate   = "duplicate"
)

// NewLister returns a lister. It reads the snapshot of an earlier process, if there is one.
func NewLister(from objstore.BucketReader, opts Options) *Lister {
	if opts.Concurrency <= 0 {
		opts.Concurrency = 32
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Lister{from: from, opts: opts, known: map[ulid.ULID]*Meta{}}
	if err := l.readSnapshot(); err != nil && !errors.Is(err, os.ErrNotExist) {
		opts.Logger.Warn("The snapshot of the blocks is not used; it is written again", "err", err)
		l.known = map[ulid.ULID]*Meta{}
	}
	return l
}

// looked is what was found about one block.
type looked struct {
	meta    *Meta // nil: it has none yet
	err     error
	deleted time.Time // when it was marked; zero: it is not
}

// List lists the blocks. It fails if the bucket cannot be listed, or if any request fails
// other than for a missing object: then it is not known which blocks to serve.
func (l *Lister) List(ctx context.Context, now time.Time) (Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	ids, files, err := l.folders(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("list the blocks: %w", err)
	}
	found, err := l.lookAll(ctx, ids, files)
	if err != nil {
		return Result{}, err
	}
	r := Result{Blocks: map[ulid.ULID]*Meta{}, States: map[string]int{}, Corrupt: map[ulid.ULID]error{}}
	known := make(map[ulid.ULID]*Meta, len(found))
	deleted := map[ulid.ULID]time.Time{}
	for i, b := range found {
		id := ids[i]
		switch {
		case b.err != nil:
			r.States[corrupted]++
			r.Corrupt[id] = b.err
		case b.meta == nil:
			r.States[noMeta]++
		default:
			known[id], r.Blocks[id] = b.meta, b.meta
			if !b.deleted.IsZero() {
				deleted[id] = b.deleted
			}
		}
	}
	changed := len(known) != len(l.known)
	for id := range known {
		changed = changed || l.known[id] == nil
	}
	l.known = known
	if changed {
		if err := l.writeSnapshot(); err != nil {
			l.opts.Logger.Warn("Writing the snapshot of the blocks failed; the next start reads every meta.json", "err", err)
		}
	}
	l.opts.Rules.apply(&r, deleted, now)
	r.States[loaded] = len(r.Blocks)
	return r, nil
}

// Forget makes the next list read the meta.json of a block again: its files are missing.
func (l *Lister) Forget(id ulid.ULID) {
	l.forgetting.Lock()
	defer l.forgetting.Unlock()
	if len(l.forgotten) < forgottenMax {
		l.forgotten = append(l.forgotten, id)
	}
}

// forgottenMax bounds the blocks that are read again; many requests may name the same one.
const forgottenMax = 10_000

func (l *Lister) forget() {
	l.forgetting.Lock()
	defer l.forgetting.Unlock()
	for _, id := range l.forgotten {
		delete(l.known, id)
	}
	l.forgotten = nil
}

// folders returns the blocks of the bucket, and if they are listed recursively, their
// meta.json and marks.
func (l *Lister) folders(ctx context.Context) (ids []ulid.ULID, files map[string]bool, err error) {
	if !l.opts.Recursive {
		err = l.from.Iter(ctx, "", func(name string) error {
			if id, err := ulid.ParseStrict(path.Base(name)); err == nil && name[len(name)-1] == '/' {
				ids = append(ids, id)
			}
			return nil
		})
		return ids, nil, err
	}
	files, seen := map[string]bool{}, map[ulid.ULID]bool{}
	err = l.from.Iter(ctx, "", func(name string) error {
		folder, file := path.Split(name)
		id, err := ulid.ParseStrict(path.Clean(folder))
		if err != nil || file != metaFile && file != markFile {
			return nil
		}
		if files[name] = true; !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
		return nil
	}, objstore.WithRecursiveIter())
	return ids, files, err
}

const (
	metaFile = "meta.json"
	markFile = "deletion-mark.json"
)

// lookAll looks at every block.
func (l *Lister) lookAll(ctx context.Context, ids []ulid.ULID, files map[string]bool) ([]looked, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make([]looked, len(ids))
	next := make(chan int)
	var all sync.WaitGroup
	for range min(l.opts.Concurrency, len(ids)) {
		all.Go(func() {
			for i := range next {
				if err := l.look(ctx, ids[i], files, &found[i]); err != nil {
					cancel(fmt.Errorf("block %s: %w", ids[i], err))
				}
			}
		})
	}
	for i := range ids {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	all.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return found, nil
}

// look reads the meta.json of a block unless it is known, and its deletion mark.
func (l *Lister) look(ctx context.Context, id ulid.ULID, files map[string]bool, into *looked) error {
	name := id.String() + "/"
	if into.meta = l.known[id]; into.meta == nil || files != nil && !files[name+metaFile] {
		if into.meta = nil; files != nil && !files[name+metaFile] {
			return nil
		}
		text, err := l.read(ctx, name+metaFile)
		if err != nil || text == nil {
			return err
		}
		if into.meta, into.err = Parse(id, text); into.err != nil {
			return nil
		}
	}
	if files != nil && !files[name+markFile] {
		return nil
	}
	text, err := l.read(ctx, name+markFile)
	if err != nil || text == nil {
		return err
	}
	var mark struct {
		DeletionTime int64 `json:"deletion_time"`
	}
	if err := json.Unmarshal(text, &mark); err != nil || mark.DeletionTime <= 0 {
		l.opts.Logger.Warn("A deletion mark is not valid and is ignored", "block", id, "err", err)
		return nil
	}
	into.deleted = time.Unix(mark.DeletionTime, 0)
	return nil
}

// read reads a small object; nil if there is none.
func (l *Lister) read(ctx context.Context, name string) (_ []byte, err error) {
	pause := 100 * time.Millisecond
	for attempt := 1; ; attempt++ {
		var text []byte
		if text, err = l.readOnce(ctx, name); err == nil {
			return text, nil
		}
		if l.from.IsObjNotFoundErr(err) {
			return nil, nil
		}
		if attempt == 3 || ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", path.Base(name), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause *= 4
	}
}

func (l *Lister) readOnce(ctx context.Context, name string) ([]byte, error) {
	body, err := l.from.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, metaBytesMax+1))
	if err == nil && len(text) > metaBytesMax {
		text = text[:0] // invalid
	}
	if text == nil {
		text = []byte{}
	}
	return text, err
}

// snapshotFile has the metas of all known blocks, one a line.
const snapshotFile = "blocks.jsonl"

func (l *Lister) readSnapshot() error {
	if l.opts.Dir == "" {
		return nil
	}
	file, err := os.Open(filepath.Join(l.opts.Dir, snapshotFile))
	if err != nil {
		return err
	}
	//lint:ignore errcheck the file is read only
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, metaBytesMax)
	for lines.Scan() {
		var head struct {
			ULID ulid.ULID `json:"ulid"`
		}
		line := bytes.TrimSpace(lines.Bytes())
		if err := json.Unmarshal(line, &head); err != nil {
			return err
		}
		m, err := Parse(head.ULID, line)
		if err != nil {
			return err
		}
		l.known[m.ID] = m
	}
	return lines.Err()
}

func (l *Lister) writeSnapshot() (err error) {
	if l.opts.Dir == "" {
		return nil
	}
	file, err := os.CreateTemp(l.opts.Dir, snapshotFile+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	w := bufio.NewWriter(file)
	for m := range maps.Values(l.known) {
		line, err := m.AppendJSON(nil)
		if err != nil {
			return err
		}
		_, _ = w.Write(append(line, '\n')) // Flush returns the error
	}
	if err := errors.Join(w.Flush(), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), filepath.Join(l.opts.Dir, snapshotFile))
}
