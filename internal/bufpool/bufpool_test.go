package bufpool

import (
	"testing"

	"github.com/ferula-io/ferula/internal/invariant"
)

func TestPool_GetReturnsAnEmptyBuffer(t *testing.T) {
	p := New(64, 1024)
	b := p.Get()
	if len(*b) != 0 || cap(*b) < 64 {
		t.Fatalf("len %d cap %d", len(*b), cap(*b))
	}
	*b = append(*b, "hello"...)
	p.Put(b)
	if c := p.Get(); len(*c) != 0 {
		t.Fatalf("a borrowed buffer has length %d", len(*c))
	}
}

func TestPool_OversizedBufferIsDropped(t *testing.T) {
	p := New(16, 32)
	b := p.Get()
	*b = append(*b, make([]byte, 100)...)
	p.Put(b)
	for range 10 {
		if c := p.Get(); cap(*c) > 32 {
			t.Fatalf("got an oversized buffer back, cap %d", cap(*c))
		}
	}
}

func TestPool_ReturnedBufferIsPoisoned(t *testing.T) {
	if !invariant.Enabled {
		t.Skip("only with -tags invariants")
	}
	p := New(16, 32)
	b := p.Get()
	*b = append(*b, "secret"...)
	kept := *b
	p.Put(b)
	if string(kept) == "secret" {
		t.Fatal("the returned buffer still reads as before")
	}
}
