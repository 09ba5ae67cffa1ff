// Package metas lists the blocks of a bucket in Thanos' layout.
//
// List reads the directories of a bucket, the meta.json of each new block and the deletion
// mark of every block, and returns the blocks that a store should serve. Thanos' rules select
// them: time range, sharding by relabelling, consistency delay and deletion marks. A block that
// a compacted block covers is left out. The content of a meta.json does not change. So a valid
// meta.json is read once, and again only if a file of the block was missing or corrupt (Forget). A
// snapshot in a local file keeps the content for the next start. Index and chunks are not read.
package metas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
)

// Options of a Lister. Zero values take the defaults.
type Options struct {
	Rules       Rules
	Concurrency int    // requests at once; 0: 32
	Recursive   bool   // --block-discovery-strategy=recursive: list all objects instead of looking for each block's files
	Dir         string // directory of the snapshot; "": none
	Logger      *slog.Logger
	Stall       time.Duration // List fails if nothing arrives for this time; 0: 2 min
}

// ErrCorrupt is returned for a meta.json that is not valid.
var ErrCorrupt = errors.New("corrupt meta.json")

// Parse parses the meta.json of the block id.
func Parse(id ulid.ULID, text []byte) (*bucket.Meta, error) {
	m, err := bucket.ParseMeta(text)
	if err == nil && m.ID != id {
		err = fmt.Errorf("it names block %s", m.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return m, nil
}

// ErrStalled is returned by List if nothing has arrived from the bucket for Options.Stall.
var ErrStalled = errors.New("the bucket has stalled")

// Lister lists the blocks of a bucket. Use NewLister.
type Lister struct {
	from objstore.BucketReader
	opts Options

	mu      sync.Mutex // one list at a time
	ready   bool       // the snapshot was read
	unsaved bool       // the snapshot could not be written
	known   map[ulid.ULID]*bucket.Meta
	arrived *time.Timer // cancels the running list; reset whenever data arrives

	forgetting sync.Mutex
	forgotten  []ulid.ULID // blocks whose meta.json the next List reads again
}

// Result is the result of one List.
type Result struct {
	Blocks  map[ulid.ULID]*bucket.Meta // to be served
	States  map[string]int             // number of blocks by Thanos' name of their state
	Corrupt map[ulid.ULID]error        // blocks with an invalid meta.json
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

// states has every state, so that the number of a state without blocks is set to 0.
var states = [...]string{loaded, noMeta, corrupted, failed, timeExclude, labelExcl, tooFresh, marked, duplicate}

// NewLister returns a lister.
func NewLister(from objstore.BucketReader, opts Options) *Lister {
	if opts.Concurrency <= 0 {
		opts.Concurrency = 32
	}
	if opts.Stall <= 0 {
		opts.Stall = 2 * time.Minute
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if counted, ok := from.(objstore.InstrumentedBucketReader); ok { // a missing mark is no failure
		from = counted.ReaderWithExpectedErrs(from.IsObjNotFoundErr)
	}
	return &Lister{from: from, opts: opts, known: map[ulid.ULID]*bucket.Meta{}}
}

// looked is the result of the lookup of one block.
type looked struct {
	meta    *bucket.Meta // nil: the block has no meta.json yet
	err     error
	deleted time.Time // deletion_time of the deletion mark; zero: the block has no mark
}

// List lists the blocks. The first call uses the snapshot of an earlier process, if there is
// one. List fails if the bucket cannot be listed or stalls. It also fails if a request fails
// for another reason than a missing object, because it is then unknown which blocks to serve.
func (l *Lister) List(ctx context.Context, now time.Time) (Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.arrived = time.AfterFunc(l.opts.Stall, func() {
		cancel(fmt.Errorf("%w: nothing has arrived for %s", ErrStalled, l.opts.Stall))
	})
	defer l.arrived.Stop()
	read := make(chan struct{}) // the snapshot is read while the bucket is listed
	go func() {
		defer close(read)
		l.load()
	}()
	ids, found, err := l.lookAll(ctx, read)
	<-read
	if err != nil {
		return Result{}, err
	}
	r := Result{Blocks: map[ulid.ULID]*bucket.Meta{}, States: map[string]int{}, Corrupt: map[ulid.ULID]error{}}
	for _, state := range states {
		r.States[state] = 0
	}
	known := make(map[ulid.ULID]*bucket.Meta, len(found))
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
	changed := l.unsaved || len(known) != len(l.known)
	for id := range known {
		changed = changed || l.known[id] == nil
	}
	l.known = known
	if changed {
		err := l.writeSnapshot()
		if l.unsaved = err != nil; l.unsaved {
			l.opts.Logger.Warn("Writing the snapshot of the blocks failed; the next list tries again, and until then a start reads every new meta.json", "err", err)
		}
	}
	l.opts.Rules.apply(&r, deleted, now)
	r.States[loaded] = len(r.Blocks)
	return r, nil
}

// Forget makes the next List read the meta.json of a block again. It is called if a file of
// the block is missing or corrupt.
func (l *Lister) Forget(id ulid.ULID) {
	l.forgetting.Lock()
	defer l.forgetting.Unlock()
	if len(l.forgotten) < forgottenMax {
		l.forgotten = append(l.forgotten, id)
	}
}

// forgottenMax bounds Lister.forgotten, to which failed requests add blocks.
const forgottenMax = 10_000

func (l *Lister) forget() {
	l.forgetting.Lock()
	defer l.forgetting.Unlock()
	for _, id := range l.forgotten {
		delete(l.known, id)
	}
	l.forgotten = nil
}

// each calls f for the blocks of the bucket. With Options.Recursive files has the names of all
// meta.json files and deletion marks; otherwise it is nil, and f looks for these files.
func (l *Lister) each(ctx context.Context, f func(id ulid.ULID, files map[string]bool) error) error {
	if !l.opts.Recursive {
		return l.from.Iter(ctx, "", func(name string) error {
			if id, err := ulid.ParseStrict(path.Base(name)); err == nil && name[len(name)-1] == '/' {
				return f(id, nil)
			}
			return nil
		})
	}
	files := map[string]bool{}
	var ids []ulid.ULID
	seen := map[ulid.ULID]bool{}
	if err := l.from.Iter(ctx, "", func(name string) error {
		l.arrived.Reset(l.opts.Stall)
		dir, file := path.Split(name)
		id, err := ulid.ParseStrict(path.Clean(dir))
		switch {
		case err != nil || file != "" && file != metaFile && file != markFile:
			return nil
		case file == "":
			// A directory without permission to list it. look requests its files: if they cannot be read either, List fails
			// instead of returning a result without this block.
			files[dir+metaFile], files[dir+markFile] = true, true
		default:
			files[name] = true
		}
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
		return nil
	}, objstore.WithRecursiveIter()); err != nil {
		return err
	}
	for _, id := range ids {
		if err := f(id, files); err != nil {
			return err
		}
	}
	return nil
}

const (
	metaFile = "meta.json"
	markFile = "deletion-mark.json"
)

// lookAll looks up every block while the bucket is being listed. all[i] is the result for block
// ids[i]. known is closed when l.known can be read.
func (l *Lister) lookAll(ctx context.Context, known <-chan struct{}) (ids []ulid.ULID, all []*looked, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type task struct {
		id    ulid.ULID
		files map[string]bool
		into  *looked
	}
	tasks := make(chan task, 1024) // buffered, so that slow lookups do not delay the list
	var lookers sync.WaitGroup
	for range l.opts.Concurrency {
		lookers.Go(func() {
			for t := range tasks {
				if err := l.look(ctx, t.id, t.files, known, t.into); err != nil {
					cancel(fmt.Errorf("block %s: %w", t.id, err))
				}
			}
		})
	}
	err = l.each(ctx, func(id ulid.ULID, files map[string]bool) error {
		l.arrived.Reset(l.opts.Stall)
		one := &looked{}
		ids, all = append(ids, id), append(all, one)
		select {
		case tasks <- task{id, files, one}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(tasks)
	lookers.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case err != nil:
		return nil, nil, fmt.Errorf("list the blocks: %w", err)
	}
	return ids, all, nil
}

// look reads the deletion mark of a block, and its meta.json unless it is known.
func (l *Lister) look(ctx context.Context, id ulid.ULID, files map[string]bool, known <-chan struct{},
	into *looked) (err error) {
	name := id.String() + "/"
	if files != nil && !files[name+metaFile] {
		return nil
	}
	if files == nil || files[name+markFile] {
		if into.deleted, err = l.mark(ctx, id, name+markFile); err != nil {
			return err
		}
	}
	<-known
	if into.meta = l.known[id]; into.meta != nil {
		return nil
	}
	text, err := l.read(ctx, name+metaFile)
	if err != nil || text == nil {
		return err
	}
	into.meta, into.err = Parse(id, text)
	return nil
}

// markTimeMax is the end of the year 9999 in Unix seconds. A mark with a later time has another unit, or overflows a
// time.Time.
const markTimeMax = 253402300799

// mark returns when a block was marked for deletion; the zero time if it was not.
func (l *Lister) mark(ctx context.Context, id ulid.ULID, name string) (at time.Time, err error) {
	text, err := l.read(ctx, name)
	if err != nil || text == nil {
		return at, err
	}
	var mark struct {
		DeletionTime int64 `json:"deletion_time"`
	}
	if err := json.Unmarshal(text, &mark); err != nil || mark.DeletionTime <= 0 || mark.DeletionTime > markTimeMax {
		l.opts.Logger.Warn("Ignoring an invalid deletion mark", "block", id, "err", err)
		return at, nil
	}
	return time.Unix(mark.DeletionTime, 0), nil
}

// read reads a small object, in up to three attempts. It returns nil if the object does not exist.
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
	l.arrived.Reset(l.opts.Stall)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(arriving{body, l}, bucket.MetaBytesMax+1))
	if err == nil && len(text) > bucket.MetaBytesMax {
		text = text[:0] // invalid
	}
	if text == nil {
		text = []byte{}
	}
	return text, err
}

// arriving is a body that resets the timer of the lister whenever it reads bytes.
type arriving struct {
	io.Reader
	lister *Lister
}

// Read implements io.Reader.
func (a arriving) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.lister.arrived.Reset(a.lister.opts.Stall)
	}
	return n, err
}
