//go:build !clouds

package bucket

import (
	"errors"

	"github.com/thanos-io/objstore"
)

// openGCS returns an error: the client of Google Cloud Storage is large, and only builds with the tag clouds have it.
func openGCS([]byte, string, kitLogger) (objstore.Bucket, error) {
	return nil, errors.New("type GCS is not in this build: use a release, or build with -tags clouds")
}
