package invariant

import (
	"strings"
	"testing"
)

func TestCheck_FalseConditionPanicsWithItsMessage(t *testing.T) {
	defer func() {
		r := recover()
		if s, ok := r.(string); !ok || !strings.Contains(s, "3 is not below 2") {
			t.Fatalf("got %v", r)
		}
	}()
	Check(true, "never formatted")
	Check(3 < 2, "%d is not below %d", 3, 2)
	t.Fatal("no panic")
}
