package bucket

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/profiles"
)

var errDenied = errors.New("403 Forbidden")

// refusals is a bucket in which the attributes and the content of some objects cannot be read.
type refusals struct {
	objstore.Bucket
	mu    sync.Mutex
	names map[string]bool
	err   error
}

func (r *refusals) of(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names[name] {
		return r.err
	}
	return nil
}

func (r *refusals) set(err error, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names, r.err = map[string]bool{}, err
	for _, name := range names {
		r.names[name] = true
	}
}

func (r *refusals) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	if err := r.of(name); err != nil {
		return objstore.ObjectAttributes{}, err
	}
	return r.Bucket.Attributes(ctx, name)
}

func (r *refusals) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := r.of(name); err != nil {
		return nil, err
	}
	return r.Bucket.Get(ctx, name)
}

// IsAccessDeniedErr does not look into wrapped errors, as those of the providers.
func (*refusals) IsAccessDeniedErr(err error) bool { return err == errDenied } //nolint:errorlint // see above

// An object that cannot be read must not hide other blocks.
func TestProfileReader_UnreadableObjectConcernsItsBlockOnly(t *testing.T) {
	in := &refusals{Bucket: objstore.NewInMemBucket()}
	sizeOf, markOf, fine := ulid.Make(), ulid.Make(), ulid.Make()
	for id, tenant := range map[ulid.ULID]string{sizeOf: "a", markOf: "b", fine: "b"} {
		upload(t, in, tenant, id, func(string) []byte { return []byte("0123456789") })
	}
	at := time.Unix(1_700_000_000, 0)
	if _, err := NewProfileStore(in).Mark(t.Context(), "b", markOf, at, "by hand"); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	r := newReader(t, in)
	r.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	list := func() map[ulid.ULID]profiles.BucketBlock {
		t.Helper()
		all := map[ulid.ULID]profiles.BucketBlock{}
		found, err := r.Blocks(t.Context())
		for _, o := range found {
			all[o.ID] = o
		}
		if err != nil || len(all) != 3 || all[fine].Unread != nil || all[fine].MarkUnread || all[fine].RowsBytes != 10 {
			t.Fatalf("%+v, %v", found, err)
		}
		return all
	}
	rows := path.Join(ProfileBlock("a", sizeOf), profileFiles[0])
	in.set(errDenied, rows, path.Join(ProfileBlock("b", markOf), MarkFile))
	for i := range 3 {
		all := list()
		if o := all[sizeOf]; o.Tenant != "a" || !errors.Is(o.Unread, errDenied) || !strings.Contains(o.Unread.Error(), rows) || o.Rows != nil {
			t.Errorf("no size: %+v", o)
		}
		if o := all[markOf]; !o.MarkUnread || !o.Marked.IsZero() || o.Unread != nil || o.RowsBytes != 10 {
			t.Errorf("no mark: %+v", o)
		}
		if n := r.unread.Get(); n != uint64(2*i+2) {
			t.Errorf("%d objects are counted", n)
		}
	}
	if text := log.String(); strings.Count(text, "cannot be read") != 6 || !strings.Contains(text, rows) || !strings.Contains(text, MarkFile) {
		t.Error(text)
	}
	in.set(nil)
	if all := list(); all[sizeOf].Unread != nil || all[sizeOf].RowsBytes != 10 || all[markOf].MarkUnread || !all[markOf].Marked.Equal(at) {
		t.Errorf("%+v", all)
	}
	list()
	list()[sizeOf].Doubt()
	in.set(errDenied, rows)
	if all := list(); all[sizeOf].Unread != nil || all[sizeOf].RowsBytes != 10 {
		t.Errorf("the sizes of the list before: %+v", all[sizeOf])
	}
}

// If very many lookups fail, the bucket does not respond: the list fails. If access to the objects is denied, only the blocks are unreadable.
func TestProfileReader_ManyFailedLookupsFailTheListUnlessAccessIsDenied(t *testing.T) {
	for blocks := unreadMax; blocks <= 3*unreadMax; blocks += 2 * unreadMax {
		in, names := &refusals{Bucket: objstore.NewInMemBucket()}, []string{}
		for range blocks {
			id := ulid.Make()
			upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
			names = append(names, path.Join(ProfileBlock("a", id), indexFile))
		}
		var log strings.Builder
		r := newReader(t, in)
		r.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
		in.set(io.ErrUnexpectedEOF, names...)
		found, err := r.Blocks(t.Context())
		if few := blocks <= unreadMax; few != (err == nil) || few && len(found) != blocks || !few && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d blocks, %v", len(found), blocks, err)
		}
		in.set(errDenied, names...)
		log.Reset()
		if found, err := r.Blocks(t.Context()); err != nil || len(found) != blocks || !errors.Is(found[0].Unread, errDenied) {
			t.Errorf("%d of %d blocks, %v", len(found), blocks, err)
		}
		if text := log.String(); strings.Count(text, "\n") != unreadLogged+1 {
			t.Errorf("%d blocks: %s", blocks, text)
		}
	}
}
