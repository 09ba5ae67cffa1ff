package remoteread

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestPermanent_IsTrueForWhatARetryCannotChange(t *testing.T) {
	for err, want := range map[error]bool{
		ErrRefused: true, ErrLimit: true, ErrCorrupt: true, labelenc.ErrCorrupt: true,
		ErrUnavailable: false, ErrStalled: false, io.ErrUnexpectedEOF: false, errors.New("other"): false,
	} {
		if got := Permanent(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
