package profiles

import (
	"context"
	"io"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
)

// Profiles that the runtime records can be pushed, and all their CPU is in the store.
func TestRecorded_IsInTheStore(t *testing.T) {
	merged, _, err := heapPushes(100, services)
	if err != nil {
		t.Fatal(err)
	}
	pushed, want, err := recorded(merged)
	if err != nil {
		t.Fatal(err)
	}
	b := area.New(Area, area.Env{Rounds: 1, Log: io.Discard})
	if err := pushes(context.Background(), b, ", recorded", pushed, cpuType, want); err != nil {
		t.Fatal(err)
	}
	if pushes(context.Background(), b, ", recorded", pushed[:100], cpuType, want) == nil {
		t.Error("lost profiles are not noticed")
	}
}
