package bucket

import (
	"context"
	"io"

	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/redact"
)

// redacted is a bucket whose errors have no signatures. The errors become parts of logs, and of warnings that
// clients see.
type redacted struct{ objstore.Bucket }

// Iter implements objstore.Bucket.
func (r redacted) Iter(ctx context.Context, dir string, f func(string) error, options ...objstore.IterOption) error {
	return redact.Signature(r.Bucket.Iter(ctx, dir, f, options...))
}

// IterWithAttributes implements objstore.Bucket.
func (r redacted) IterWithAttributes(ctx context.Context, dir string, f func(objstore.IterObjectAttributes) error,
	options ...objstore.IterOption) error {
	return redact.Signature(r.Bucket.IterWithAttributes(ctx, dir, f, options...))
}

// Get implements objstore.Bucket.
func (r redacted) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	return redactBody(r.Bucket.Get(ctx, name))
}

// GetRange implements objstore.Bucket.
func (r redacted) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	return redactBody(r.Bucket.GetRange(ctx, name, off, length))
}

// Exists implements objstore.Bucket.
func (r redacted) Exists(ctx context.Context, name string) (bool, error) {
	ok, err := r.Bucket.Exists(ctx, name)
	return ok, redact.Signature(err)
}

// Attributes implements objstore.Bucket.
func (r redacted) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	a, err := r.Bucket.Attributes(ctx, name)
	return a, redact.Signature(err)
}

// Upload implements objstore.Bucket.
func (r redacted) Upload(ctx context.Context, name string, body io.Reader,
	options ...objstore.ObjectUploadOption) error {
	return redact.Signature(r.Bucket.Upload(ctx, name, body, options...))
}

// Delete implements objstore.Bucket.
func (r redacted) Delete(ctx context.Context, name string) error {
	return redact.Signature(r.Bucket.Delete(ctx, name))
}

// redactedBody is a body whose errors have no signatures. If a body is interrupted, Azure's client requests the
// rest, so an error of Read may have a URL.
type redactedBody struct{ io.ReadCloser }

func redactBody(body io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, redact.Signature(err)
	}
	return redactedBody{body}, nil
}

// Read implements io.Reader.
func (b redactedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || err == io.EOF { //lint:ignore errorlint the end is never wrapped
		return n, err
	}
	return n, redact.Signature(err)
}

// ObjectSize implements objstore.ObjectSizer.
func (b redactedBody) ObjectSize() (int64, error) { return objstore.TryToGetSize(b.ReadCloser) }
