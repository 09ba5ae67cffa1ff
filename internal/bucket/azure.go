package bucket

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/azure"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/redact"
)

// openAzure returns a client of Azure's blobs. It sends no request. With storage_create_container, the provider's
// constructor looks the container up, without a timeout: while Azure does not respond, a server could neither start
// nor be stopped. So openAzure calls the constructor without this key, and azureBucket creates the container at the
// first request.
func openAzure(text []byte, component string, logger kitLogger) (objstore.Bucket, error) {
	changed, create, err := withoutLookup(text)
	if err != nil {
		return nil, err
	}
	b, err := azure.NewBucket(logger, changed, component, nil)
	if err != nil {
		return nil, err
	}
	within := &azureBucket{Bucket: b, create: func(ctx context.Context) error {
		_, err := azure.NewBucket(logger, text, component, func(next http.RoundTripper) http.RoundTripper {
			return cancelable{ctx, next}
		})
		return err
	}}
	within.found.Store(!create)
	return within, nil
}

// cancelable cancels requests when ctx is done. The provider's constructor has no context.
type cancelable struct {
	ctx  context.Context // stored because a cancelable belongs to one call of create
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c cancelable) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.next.RoundTrip(r.WithContext(c.ctx))
}

// withoutLookup returns the configuration with storage_create_container: false. create is the value of this key in
// text; true without the key.
func withoutLookup(text []byte) (changed []byte, create bool, err error) {
	const key = "storage_create_container"
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, false, err
	}
	if document.Kind == 0 || document.Content[0].Kind != yaml.MappingNode {
		return text, false, nil // the provider has an error for it
	}
	fields, create := document.Content[0], true
	var value *yaml.Node
	for i := 0; i+1 < len(fields.Content); i += 2 {
		if fields.Content[i].Value == key {
			value = fields.Content[i+1]
		}
	}
	if value == nil {
		value = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"}
		fields.Content = append(fields.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
	}
	if err := value.Decode(&create); err != nil {
		return nil, false, fmt.Errorf("config.%s: %w", key, err)
	}
	*value = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "false"}
	changed, err = yaml.Marshal(&document)
	return changed, create, err
}

// azureBucket creates its container if the first request finds none. Its errors become parts of logs, and of warnings
// that clients see, so they have no signatures.
type azureBucket struct {
	*azure.Bucket
	create func(context.Context) error // creates the container, unless it exists

	creating sync.Mutex  // locked during a call of create
	found    atomic.Bool // a missing container is an error: a request has succeeded, or none is to be created
}

// within runs op. If the container is missing and no request has succeeded yet, it creates the container and runs op
// again.
func (b *azureBucket) within(ctx context.Context, op func() error) error {
	err := op()
	if err == nil {
		b.found.Store(true)
	} else if !b.found.Load() && bloberror.HasCode(err, bloberror.ContainerNotFound) {
		b.creating.Lock()
		err = b.create(ctx)
		b.creating.Unlock()
		if err != nil {
			err = fmt.Errorf("create the container: %w", err)
		} else {
			err = op()
		}
	}
	return redact.Signature(err)
}

// Iter implements objstore.BucketReader.
func (b *azureBucket) Iter(ctx context.Context, dir string, f func(string) error, opts ...objstore.IterOption) error {
	return b.within(ctx, func() error { return b.Bucket.Iter(ctx, dir, f, opts...) })
}

func (b *azureBucket) IterWithAttributes(ctx context.Context, dir string, f func(objstore.IterObjectAttributes) error,
	opts ...objstore.IterOption) error {
	return b.within(ctx, func() error { return b.Bucket.IterWithAttributes(ctx, dir, f, opts...) })
}

func (b *azureBucket) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	return b.body(ctx, func() (io.ReadCloser, error) { return b.Bucket.Get(ctx, name) })
}

func (b *azureBucket) GetRange(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	return b.body(ctx, func() (io.ReadCloser, error) { return b.Bucket.GetRange(ctx, name, offset, length) })
}

func (b *azureBucket) body(ctx context.Context, open func() (io.ReadCloser, error)) (body io.ReadCloser, err error) {
	if err = b.within(ctx, func() error { body, err = open(); return err }); err != nil {
		return nil, err
	}
	return redactedBody{body}, nil
}

func (b *azureBucket) Exists(ctx context.Context, name string) (there bool, err error) {
	err = b.within(ctx, func() error { there, err = b.Bucket.Exists(ctx, name); return err })
	return there, err
}

func (b *azureBucket) Attributes(ctx context.Context, name string) (about objstore.ObjectAttributes, err error) {
	err = b.within(ctx, func() error { about, err = b.Bucket.Attributes(ctx, name); return err })
	return about, err
}

// Upload implements objstore.Bucket. An upload cannot be repeated, because r can be read only once. So Upload first
// calls Exists, which creates a missing container.
func (b *azureBucket) Upload(ctx context.Context, name string, r io.Reader, opts ...objstore.ObjectUploadOption) error {
	if !b.found.Load() {
		if _, err := b.Exists(ctx, name); err != nil {
			return err
		}
	}
	return redact.Signature(b.Bucket.Upload(ctx, name, r, opts...))
}

func (b *azureBucket) Delete(ctx context.Context, name string) error {
	return b.within(ctx, func() error { return b.Bucket.Delete(ctx, name) })
}

// redactedBody is a body whose errors have no signatures. If a body is interrupted, Azure's client requests the
// rest, so an error of Read may have a URL.
type redactedBody struct{ io.ReadCloser }

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
