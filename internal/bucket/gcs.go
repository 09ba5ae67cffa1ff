//go:build clouds

package bucket

import (
	"context"
	"io"

	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/gcs"
)

// openGCS returns a client of Google Cloud Storage.
func openGCS(text []byte, component string, logger kitLogger) (objstore.Bucket, error) {
	b, err := gcs.NewBucket(context.Background(), logger, text, component, nil)
	if err != nil {
		return nil, err
	}
	return gcsBucket{b}, nil
}

// gcsBucket cancels the context of an upload when the upload ends. If the reader fails, the provider does not end
// the request, and the goroutine of the request would not end either.
type gcsBucket struct{ *gcs.Bucket }

// Upload implements objstore.Bucket.
func (b gcsBucket) Upload(ctx context.Context, name string, r io.Reader, opts ...objstore.ObjectUploadOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return b.Bucket.Upload(ctx, name, r, opts...)
}
