package ingest

import (
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/hint"
)

func TestLimits_ErrorsNameTheFlagThatRaisesTheLimitOnce(t *testing.T) {
	l := Limits{Flags: hint.Flags{"Labels": "--labels"}}
	if err := l.hinted(l.hinted(limitError("labels", "31 labels, at most 30"))); err.Error() != "31 labels, at most 30 (--labels)" {
		t.Error(err)
	}
	if err := l.hinted(limitError("rate", "too fast")); err.Error() != "too fast" {
		t.Error(err)
	}
	// Every reason has an option, so that a new one is not forgotten.
	for _, reason := range []string{"rate", "series", "tenants", "profile_size", "too_old", "too_new", "label_name", "label_value", "labels"} {
		if optionOf[reason] == "" {
			t.Errorf("no option for %s", reason)
		}
	}
	if err := l.hinted(nil); err != nil || strings.Contains(l.Flags.Of("x"), "(") {
		t.Error(err)
	}
}
