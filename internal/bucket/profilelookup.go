package bucket

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"github.com/thanos-io/objstore"
	"golang.org/x/sync/errgroup"
)

const (
	lookupsMax = 16 // blocks that a list looks up concurrently

	// unreadMax is the number of blocks in one list whose sizes or marks may fail to be read. Blocks to which access is
	// denied do not count. With more failures the fault is probably in the bucket, not in single objects. Then the list
	// fails, and its caller goes on with its previous list.
	unreadMax = 16

	unreadLogged = 10 // blocks of one list that are logged because their sizes or marks cannot be read

	markInvalidFor = time.Hour // a mark that is not valid is read again after this time
)

// lookups look up the files and the new deletion marks of the blocks of one list.
type lookups struct {
	*ProfileReader
	failed atomic.Int32 // blocks that count against unreadMax
	unread atomic.Int32 // blocks whose sizes or marks cannot be read
}

// lookAll looks up the files and the new deletion marks of all blocks, at most lookupsMax concurrently. The results
// are in the order of dirs; nil: the block does not exist. If lookAll fails, it returns the results so far with the
// error.
func (r *ProfileReader) lookAll(ctx context.Context, dirs []*StoredProfile) ([]*knownProfile, error) {
	looked, all := make([]*knownProfile, len(dirs)), &lookups{ProfileReader: r}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookupsMax)
	for i := range dirs {
		dir := dirs[i]
		old := r.known[dir.Name()]
		if old != nil && !dir.marked() {
			old.mark, old.markUnread, old.markInvalid = DeletionMark{}, false, time.Time{}
		}
		confirmed := old != nil && old.confirmed && dir.Unread == nil
		if confirmed {
			looked[i] = old
		}
		if confirmed && !r.newMark(dir, old) {
			continue
		}
		group.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !confirmed {
				if looked[i], err = all.look(ctx, dir.Name()); err != nil {
					return err
				}
			}
			if looked[i] != nil && looked[i].unread == nil && r.newMark(dir, looked[i]) {
				return all.readMark(ctx, dir, looked[i])
			}
			return nil
		})
	}
	err := group.Wait()
	if more := all.unread.Load() - unreadLogged; more > 0 {
		r.opts.Logger.Warn("Objects of further profile blocks in the bucket cannot be read", "blocks", more)
	}
	return looked, err
}

// marked reports whether a block has, or may have, a deletion mark.
func (s *StoredProfile) marked() bool { return s.Marked() || s.Unread != nil }

// newMark reports whether the deletion mark of a block must be read: it is listed, and either was not read yet or
// was not valid markInvalidFor ago.
func (r *ProfileReader) newMark(s *StoredProfile, k *knownProfile) bool {
	return s.marked() && k.mark.DeletionTime <= 0 && r.now().Sub(k.markInvalid) >= markInvalidFor
}

// ofOne reports whether an error concerns only this block, so that the list goes on without the block's sizes or
// mark. It logs and counts such an error. It returns false if ctx is done or the list has more than unreadMax of
// these errors.
func (l *lookups) ofOne(ctx context.Context, block string, err error) bool {
	if ctx.Err() != nil || !anyWrapped(err, l.bucket.IsAccessDeniedErr) && l.failed.Add(1) > unreadMax {
		return false
	}
	l.ProfileReader.unread.Inc()
	if l.unread.Add(1) <= unreadLogged {
		l.opts.Logger.Warn("An object of a profile block in the bucket cannot be read", "block", block, "err", err)
	}
	return true
}

// readMark reads the deletion mark of a block into k. If the mark is not valid, or was deleted since the list, the
// block counts as not marked.
func (l *lookups) readMark(ctx context.Context, dir *StoredProfile, k *knownProfile) error {
	mark, err := l.ReadMark(ctx, dir)
	k.markUnread = false
	switch {
	case err == nil:
		k.mark = mark
	case l.IsNotFound(err):
	case errors.Is(err, ErrCorrupt):
		k.markInvalid = l.now()
		l.opts.Logger.Warn("Ignoring an invalid deletion mark", "block", dir.Name(), "err", err)
	case l.ofOne(ctx, dir.Name(), err):
		k.markUnread = true
	default:
		return err
	}
	return nil
}

// look requests the sizes of a block's index and rows. It returns nil unless both objects exist. If a size cannot be
// read, look returns the block with the sizes of the previous list. If the previous list has no sizes, it returns
// the block with the error in unread.
func (l *lookups) look(ctx context.Context, name string) (*knownProfile, error) {
	old, sizes := l.known[name], [2]int64{}
	if old != nil && old.unread != nil {
		old = nil
	}
	for i, file := range []string{indexFile, profileFiles[0]} {
		object := path.Join(name, file)
		attributes, err := l.attributes(ctx, object)
		if l.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			if !l.ofOne(ctx, name, err) {
				return nil, err
			}
			if old != nil {
				return old, nil
			}
			return &knownProfile{unread: err}, nil
		}
		sizes[i] = attributes.Size
	}
	if old != nil && old.index.Size() == sizes[0] && old.rows.Size() == sizes[1] {
		same := *old // its pages stay cached
		same.confirmed, same.head = true, nil
		return &same, nil
	}
	return l.newKnown(name, sizes[0], sizes[1]), nil
}

// isNotFound reports whether an error, or an error that it wraps, means that an object does not exist.
func isNotFound(in objstore.BucketReader, err error) bool {
	return anyWrapped(err, in.IsObjNotFoundErr)
}

// anyWrapped reports whether is holds for an error or an error that it wraps. The providers' own functions do not look
// into wrapped errors.
func anyWrapped(err error, is func(error) bool) bool {
	if err == nil {
		return false
	}
	if is(err) {
		return true
	}
	//lint:ignore errorlint the wrapped errors are visited here
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return anyWrapped(e.Unwrap(), is)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(e error) bool { return anyWrapped(e, is) })
	}
	return false
}
