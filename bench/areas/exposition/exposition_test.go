package exposition

import (
	"errors"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
)

func TestFilled_EveryKindIsEqual(t *testing.T) {
	for _, k := range kinds {
		all, err := filled(k.name, func(l library) { k.make(l) })
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := floorOf(page(all[2])); err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
	}
	if _, err := filled("mixed", func(l library) { mixed(l, 200) }); err != nil {
		t.Error(err)
	}
	if _, err := filled("maintainer", maintainers); err != nil {
		t.Error(err)
	}
}

func TestFilled_UnequalPagesAreErrors(t *testing.T) {
	made := 0
	_, err := filled("x", func(l library) {
		made++
		c := l.counter("c_total")
		for range made {
			c.Inc()
		}
	})
	if !errors.Is(err, area.ErrUnequal) {
		t.Errorf("got %v, want ErrUnequal", err)
	}
	if _, err = filled("x", func(library) {}); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("got %v, want ErrEmpty", err)
	}
}

func TestAllocated_CountsAllocations(t *testing.T) {
	var kept []byte
	count, bytes := allocated(func(n int) {
		for range n {
			kept = make([]byte, 1<<10)
		}
	})
	if count != 1 || bytes != 1<<10 || len(kept) == 0 {
		t.Errorf("%v allocations of %v bytes", count, bytes)
	}
}
