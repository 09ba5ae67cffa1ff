//go:build !clouds

package bucket

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestOpen_GCSNeedsTheBuildTag(t *testing.T) {
	for _, text := range []string{"type: GCS\nconfig: {bucket: b}\n", "type: gcs\n"} {
		if _, err := Open([]byte(text), "test", quiet, prometheus.NewRegistry()); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "type GCS is not in this build") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
