package profiles

import "testing"

func TestNewID_HasItsTime(t *testing.T) {
	a, b := NewID(1_700_000_000_123), NewID(1_700_000_000_123)
	if ms, ok := a.TimeMS(); !ok || ms != 1_700_000_000_123 || a == b {
		t.Errorf("%s and %s: %d %v", a, b, ms, ok)
	}
	if parsed, err := ParseID(a.String()); err != nil || parsed != a {
		t.Error(parsed, err)
	}
	random, err := ParseID("3d2f4a10-8c8e-4f6a-9d55-0123456789ab")
	if ms, ok := random.TimeMS(); err != nil || ok || ms != 0 {
		t.Errorf("TimeMS of a version 4 id: %d, %v", ms, err)
	}
}
