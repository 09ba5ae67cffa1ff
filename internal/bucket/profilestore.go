package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/profiles"
)

const (
	profileReadTimeout = 5 * time.Minute // of one request
	profilePartBytes   = 16 << 20        // bytes that one request of a download reads
	markBytesMax       = 64 << 10
	// Unix seconds of the end of the year 9999: a mark with a later time has another unit, or overflows a time.Time
	markTimeMax = 253402300799
	namesMax    = 16 // names that are kept of other objects in the directory of a block

	// storedMax is the limit of the blocks of all tenants, about 400 bytes each. It is higher than the limit of
	// readers, so that compaction can bring a bucket below that limit.
	storedMax = 1_000_000
)

// profileObjects are the objects that a profile block may have.
var profileObjects = []string{indexFile, profileFiles[0], spansFile, MarkFile}

// StoredProfile is a directory of the bucket that has the name of a profile block. The block may be
// incomplete: its upload or its deletion may have been interrupted.
type StoredProfile struct {
	Tenant string
	ID     ulid.ULID
	Unread error    // why the directory cannot be listed: its objects are not known
	files  []string // names of its objects
}

func (s *StoredProfile) has(file string) bool { return slices.Contains(s.files, file) }

// add adds the name of an object, up to namesMax names of objects that a block may not have.
func (s *StoredProfile) add(file string) {
	i := slices.Index(profileObjects, file)
	switch {
	case s.has(file) || i < 0 && len(s.files) >= namesMax:
	case i < 0:
		s.files = append(s.files, strings.Clone(file)) // file is a part of a longer text
	default:
		s.files = append(s.files, profileObjects[i])
	}
}

// Complete reports whether there are an index and rows. Their upload may still be in progress.
func (s *StoredProfile) Complete() bool { return s.has(indexFile) && s.has(profileFiles[0]) }

// HasIndex reports whether there is an index.
func (s *StoredProfile) HasIndex() bool { return s.has(indexFile) }

// Marked reports whether there is a deletion mark.
func (s *StoredProfile) Marked() bool { return s.has(MarkFile) }

// Name returns the directory.
func (s *StoredProfile) Name() string { return ProfileBlock(profiles.TenantDir(s.Tenant), s.ID) }

// DeletionMark has the time at which a block was marked for deletion, and the reason. It has the format of Thanos.
type DeletionMark struct {
	ID           ulid.ULID `json:"id"`
	Version      int       `json:"version"`
	Details      string    `json:"details,omitempty"`
	DeletionTime int64     `json:"deletion_time"` // time at which the mark was written, in Unix seconds
}

// ProfileStore lists, reads and changes the profile blocks of a bucket, for their compaction. Every
// request has a timeout. A block is never changed: a ProfileStore uploads and deletes whole blocks.
type ProfileStore struct {
	bucket  objstore.Bucket
	timeout time.Duration // of one request
	stall   time.Duration // a list or an upload without progress for this long fails

	blocksMax int
}

// NewProfileStore returns a store of the profile blocks in a bucket.
func NewProfileStore(in objstore.Bucket) *ProfileStore {
	return &ProfileStore{bucket: in, timeout: profileReadTimeout, stall: profileReadTimeout, blocksMax: storedMax}
}

// IsNotFound reports whether an error means that an object does not exist.
func (p *ProfileStore) IsNotFound(err error) bool { return isNotFound(p.bucket, err) }

// List lists the directories of all tenants' blocks. More than storedMax directories are an error. For each
// directory List keeps the names of the block's files and at most namesMax other names.
func (p *ProfileStore) List(ctx context.Context) ([]*StoredProfile, error) {
	var all, denied []*StoredProfile
	known := map[string]*StoredProfile{} // by directory
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(p.stall, func() { cancel(fmt.Errorf("no name was listed for %s", p.stall)) })
	defer stalled.Stop()
	err := eachProfileObject(ctx, p.bucket, func() {
		stalled.Reset(p.stall)
	}, func(dir, tenant string, id ulid.ULID, file string) error {
		s := known[dir]
		if s == nil {
			if len(all) == p.blocksMax {
				return fmt.Errorf("%w: there are more than %d directories of profile blocks", profiles.ErrLimit, p.blocksMax)
			}
			s = &StoredProfile{Tenant: tenant, ID: id}
			known[dir], all = s, append(all, s)
		}
		if file == "" { // not added to files: Modified requests the attributes of all of these, and a directory is no object
			denied = append(denied, s)
			return nil
		}
		s.add(file)
		return nil
	})
	for i := 0; i < len(denied) && err == nil; i++ {
		stalled.Reset(p.stall)
		if s := denied[i]; len(s.files) == 0 {
			if s.Unread = listable(ctx, p.bucket, s.Name()); ctx.Err() != nil {
				err = ctx.Err()
			}
		}
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		return nil, fmt.Errorf("list %s: %w", profilesDir, err)
	}
	return all, nil
}

// eachProfileObject lists the bucket and calls f with each object of a profile block and the directory of the block. It
// calls progress for every name. It returns the first error of f.
//
// file is "" if the listed name is the directory itself. There are two reasons: the directory of a
// FILESYSTEM bucket cannot be listed, for lack of permission, or an object store has an object of this name. If the
// directory of a tenant cannot be listed, eachProfileObject fails, because the blocks of the tenant are not known.
func eachProfileObject(ctx context.Context, from objstore.BucketReader, progress func(),
	f func(dir, tenant string, id ulid.ULID, file string) error) error {
	return from.Iter(ctx, profilesDir+"/", func(name string) error {
		progress()
		dir, file := path.Split(name)
		dir = strings.TrimSuffix(dir, "/")
		if tenant, ok := profiles.TenantOfDir(path.Base(dir)); file == "" && ok &&
			dir == path.Join(profilesDir, profiles.TenantDir(tenant)) {
			return listable(ctx, from, dir)
		}
		tenant, ok := profiles.TenantOfDir(path.Base(path.Dir(dir)))
		id, err := ulid.ParseStrict(path.Base(dir))
		if !ok || err != nil || dir != ProfileBlock(profiles.TenantDir(tenant), id) {
			return nil // not of a profile block
		}
		return f(dir, tenant, id, file)
	}, objstore.WithRecursiveIter())
}

// listable returns an error if a directory cannot be listed. It stops at the first name, so that it requests one
// page of the list.
func listable(ctx context.Context, from objstore.BucketReader, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	some := false
	err := from.Iter(ctx, dir+"/", func(string) error {
		some = true
		cancel()
		return nil
	})
	if some {
		return nil
	}
	return err
}

func (p *ProfileStore) attributes(ctx context.Context, object string) (objstore.ObjectAttributes, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	a, err := p.bucket.Attributes(ctx, object)
	if err != nil {
		err = fmt.Errorf("object %s: %w", object, err)
	}
	return a, err
}

// Sizes requests the sizes of the index and the rows.
func (p *ProfileStore) Sizes(ctx context.Context, s *StoredProfile) (indexBytes, rowsBytes int64, err error) {
	index, err := p.attributes(ctx, path.Join(s.Name(), indexFile))
	if err != nil {
		return 0, 0, err
	}
	rows, err := p.attributes(ctx, path.Join(s.Name(), profileFiles[0]))
	return index.Size, rows.Size, err
}

// Modified returns when an object of the block was last modified; the zero time if there is none.
func (p *ProfileStore) Modified(ctx context.Context, s *StoredProfile) (last time.Time, err error) {
	for _, file := range s.files {
		a, err := p.attributes(ctx, path.Join(s.Name(), file))
		if err != nil && !p.IsNotFound(err) {
			return last, err
		}
		if err == nil && a.LastModified.After(last) {
			last = a.LastModified
		}
	}
	return last, nil
}

// ReadIndex reads n bytes of the index at an offset.
func (p *ProfileStore) ReadIndex(ctx context.Context, s *StoredProfile, off, n int64) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil // S3 cannot express a range of no bytes
	}
	return b, p.read(ctx, path.Join(s.Name(), indexFile), off, b)
}

func (p *ProfileStore) read(ctx context.Context, name string, off int64, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	body, err := p.bucket.GetRange(ctx, name, off, int64(len(b)))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = io.ReadFull(body, b)
	if err = errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("%s: bytes %d to %d: %w", name, off, off+int64(len(b)), err)
	}
	return nil
}

// Download writes the files of a block to dir, which it creates.
func (p *ProfileStore) Download(ctx context.Context, s *StoredProfile, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range []string{profileFiles[0], spansFile, indexFile} {
		if s.has(file) {
			if err := p.download(ctx, s, file, filepath.Join(dir, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *ProfileStore) download(ctx context.Context, s *StoredProfile, file, to string) (err error) {
	a, err := p.attributes(ctx, path.Join(s.Name(), file))
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	part := make([]byte, min(a.Size, profilePartBytes))
	for off := int64(0); off < a.Size; off += int64(len(part)) {
		part = part[:min(int64(len(part)), a.Size-off)]
		if err := p.read(ctx, path.Join(s.Name(), file), off, part); err != nil {
			return err
		}
		if _, err := f.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// Upload uploads a block from dir, the index last, and checks the sizes of the objects. The bucket must not have
// a block of this ULID.
func (p *ProfileStore) Upload(ctx context.Context, tenant string, id ulid.ULID, dir string) (*StoredProfile, error) {
	s, v := &StoredProfile{Tenant: tenant, ID: id}, &view{}
	defer v.close()
	if err := v.openProfile(dir); err != nil {
		return nil, err
	}
	if err := p.send(ctx, s, v); err != nil {
		return nil, err
	}
	return s, nil
}

// openProfile opens the files of a profile block in the order of their upload: the index is last, because a block
// without its index is not listed.
func (v *view) openProfile(dir string) error {
	for _, file := range []string{profileFiles[0], spansFile, indexFile} {
		if err := v.open(dir, file); err != nil && (file != spansFile || !errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// send uploads the files of a block and checks the sizes of the objects.
func (p *ProfileStore) send(ctx context.Context, s *StoredProfile, v *view) error {
	for _, f := range v.files {
		name := path.Join(s.Name(), f.name)
		if err := send(ctx, f.file, f.size, p.stall, func(ctx context.Context, body io.Reader) error {
			return p.bucket.Upload(ctx, name, body)
		}); err != nil {
			return fmt.Errorf("upload %s: %w", name, err)
		}
		a, err := p.attributes(ctx, name)
		if err != nil {
			return err
		}
		if a.Size != f.size {
			return fmt.Errorf("%w: %s has %d bytes in the bucket, want %d", ErrCorrupt, name, a.Size, f.size)
		}
		s.add(f.name)
	}
	return nil
}

// Mark marks a block for deletion.
func (p *ProfileStore) Mark(ctx context.Context, tenant string, id ulid.ULID, at time.Time,
	details string) (DeletionMark, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	dir, mark := ProfileBlock(profiles.TenantDir(tenant), id), DeletionMark{ID: id, Version: 1, Details: details,
		DeletionTime: at.Unix()}
	text, err := json.Marshal(mark)
	if err != nil {
		return mark, err
	}
	if err := p.bucket.Upload(ctx, path.Join(dir, MarkFile), strings.NewReader(string(text))); err != nil {
		return mark, fmt.Errorf("mark %s for deletion: %w", dir, err)
	}
	return mark, nil
}

// Unmark removes the deletion mark of a block. It is no error if there is none.
func (p *ProfileStore) Unmark(ctx context.Context, tenant string, id ulid.ULID) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	dir := ProfileBlock(profiles.TenantDir(tenant), id)
	if err := p.bucket.Delete(ctx, path.Join(dir, MarkFile)); err != nil && !p.IsNotFound(err) {
		return fmt.Errorf("remove the deletion mark of %s: %w", dir, err)
	}
	return nil
}

// ReadMark reads the deletion mark of a block. An invalid mark is ErrCorrupt.
func (p *ProfileStore) ReadMark(ctx context.Context, s *StoredProfile) (mark DeletionMark, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	name := path.Join(s.Name(), MarkFile)
	body, err := p.bucket.Get(ctx, name)
	if err != nil {
		return mark, fmt.Errorf("%s: %w", name, err)
	}
	text, err := io.ReadAll(io.LimitReader(body, markBytesMax))
	if err = errors.Join(err, body.Close()); err != nil {
		return mark, fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(text, &mark); err != nil {
		return mark, fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
	}
	switch {
	case mark.Version != 0 && mark.Version != 1: // Thanos writes 1; marks that were written by hand may have none
		return mark, fmt.Errorf("%w: %s: version %d is not known", ErrCorrupt, name, mark.Version)
	case mark.ID != s.ID:
		return mark, fmt.Errorf("%w: %s names block %s", ErrCorrupt, name, mark.ID)
	case mark.DeletionTime <= 0 || mark.DeletionTime > markTimeMax:
		return mark, fmt.Errorf("%w: %s: deletion_time %d is not a time in Unix seconds", ErrCorrupt, name, mark.DeletionTime)
	}
	return mark, nil
}

// Delete deletes a block. It deletes the index first: if it fails later, the remaining files are not listed as a block.
// The deletion mark is last: a directory with a mark and without an index is the rest of a deletion. A file that does
// not exist is no error.
func (p *ProfileStore) Delete(ctx context.Context, tenant string, id ulid.ULID) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	dir := ProfileBlock(profiles.TenantDir(tenant), id)
	for _, file := range []string{indexFile, spansFile, profileFiles[0], MarkFile} {
		if err := p.bucket.Delete(ctx, path.Join(dir, file)); err != nil && !p.IsNotFound(err) {
			return fmt.Errorf("delete %s of %s: %w", file, dir, err)
		}
	}
	return nil
}
