package profilepb

import (
	"errors"
	"testing"
	"time"
)

func TestParseTimestamp(t *testing.T) {
	now := time.Unix(1700000000, 0)
	for text, want := range map[string]time.Time{
		"now": now, "now-1h": now.Add(-time.Hour),
		"0": time.Unix(0, 0), "1700000001": time.Unix(1700000001, 0), "1700000001.25": time.Unix(1700000001, 0),
		"1700000001002": time.UnixMilli(1700000001002), "1700000001002003": time.UnixMicro(1700000001002003),
		"1700000001002003004": time.Unix(1700000001, 2003004),
		"99999999999":         time.Unix(99999999999, 0), "100000000000": time.UnixMilli(100000000000),
		"99999999999999": time.UnixMilli(99999999999999), "100000000000000": time.UnixMicro(100000000000000),
		"99999999999999999": time.UnixMicro(99999999999999999), "100000000000000000": time.Unix(0, 100000000000000000),
	} {
		if got, err := ParseTimestamp(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "-1.5", "now+1h", "now-", "now-x", "1.2.3", "1.x", "x.1", ".5", "99999999999999999999"} {
		if got, err := ParseTimestamp(text, now); !errors.Is(err, ErrTimestamp) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
