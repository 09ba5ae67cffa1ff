package invariant

import (
	"strings"
	"testing"
)

func TestABrokenConditionPanicsWithItsMessage(t *testing.T) {
	defer func() {
		r := recover()
		if s, ok := r.(string); !ok || !strings.Contains(s, "3 is not below 2") {
			t.Fatalf("got %v", r)
		}
	}()
	Check(true, "never said")
	Check(3 < 2, "%d is not below %d", 3, 2)
	t.Fatal("no panic")
}
