package limit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/hint"
)

func TestQuery_ErrorsNameTheFlagThatRaisesTheLimit(t *testing.T) {
	q := Query{LengthMax: time.Hour, PointsMax: 10, QueryBytesMax: 3, Flags: hint.Flags{"LengthMax": "--length", "PointsMax": "--points", "QueryBytesMax": "--bytes"}}
	for flag, err := range map[string]error{
		"(--length)": q.CheckRange(0, 2*time.Hour.Milliseconds(), 3_600_000), "(--points)": q.CheckRange(0, 60_000, 1000), "(--bytes)": q.CheckText("up{}"),
	} {
		if !errors.Is(err, ErrLimit) || !strings.HasSuffix(err.Error(), flag) {
			t.Errorf("%v does not name %s", err, flag)
		}
	}
	q.Flags = nil
	if err := q.CheckText("up{}"); err == nil || strings.Contains(err.Error(), "(") {
		t.Error(err)
	}
}
