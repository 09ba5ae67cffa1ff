package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// bytesOf returns the content of a file of a fake remote.
func bytesOf(t *testing.T, at io.ReaderAt) []byte {
	t.Helper()
	r := at.(*bytes.Reader)
	b := make([]byte, r.Size())
	if _, err := r.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// The index of a bucket has sizes and metas, which servers do not request then. If they are wrong, no memory is allocated
// for them, a warning names the block, the other blocks are read, and the next list reads the true ones.
func TestView_WrongSizesInTheIndexOfTheBucketAreAWarningUntilTheNextList(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	other, err := block.Head(bytesOf(t, full.blocks[0].Index))
	if err != nil {
		t.Fatal(err)
	}
	for name, lie := range map[string]func(b *profiles.BucketBlock){
		"an index that is longer by a byte":    func(b *profiles.BucketBlock) { b.IndexBytes++ },
		"an index that is shorter by a byte":   func(b *profiles.BucketBlock) { b.IndexBytes-- },
		"an index of a byte":                   func(b *profiles.BucketBlock) { b.IndexBytes = 1 },
		"an index of 200 MiB":                  func(b *profiles.BucketBlock) { b.IndexBytes = 200 << 20 },
		"the largest index":                    func(b *profiles.BucketBlock) { b.IndexBytes = block.IndexMax },
		"more than the largest index":          func(b *profiles.BucketBlock) { b.IndexBytes = block.IndexMax + 1 },
		"an index whose size overflows":        func(b *profiles.BucketBlock) { b.IndexBytes = math.MaxInt64 },
		"rows that are longer":                 func(b *profiles.BucketBlock) { b.RowsBytes++ },
		"rows whose size overflows":            func(b *profiles.BucketBlock) { b.RowsBytes = math.MaxInt64 },
		"the head of another block":            func(b *profiles.BucketBlock) { b.Head = bytes.Clone(other) },
		"a head that is cut":                   func(b *profiles.BucketBlock) { b.Head = b.Head[:len(b.Head)-1] },
		"a head of a byte":                     func(b *profiles.BucketBlock) { b.Head = b.Head[:1] },
		"a head that is not that of the index": func(b *profiles.BucketBlock) { b.Head = append(bytes.Clone(b.Head), 0xff) },
	} {
		t.Run(name, func(t *testing.T) {
			doubts, lying := make(chan int, 100), &fakeRemote{}
			for i, b := range full.blocks {
				head, err := block.Head(bytesOf(t, b.Index))
				if err != nil {
					t.Fatal(err)
				}
				b.Head, b.Doubt = bytes.Clone(head), func() { doubts <- i }
				if i == 1 {
					lie(&b)
				}
				lying.blocks = append(lying.blocks, b)
			}
			s := openTest(t, t.TempDir(), func(s *Store) {
				s.opts.Remote, s.opts.RemoteEvery = lying, time.Hour
				s.remotes = newRemotes(s)
			})
			s.awaitList()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 2 {
				v, err := s.View(context.Background(), "t", 0, timeMax)
				if err != nil {
					t.Fatal(err)
				}
				if len(v.Sources) != 2 || len(v.Warnings) != 1 || !strings.Contains(v.Warnings[0].Error(), "block bucket/"+full.blocks[1].ID.String()) {
					t.Errorf("%d blocks, warnings %v", len(v.Sources), v.Warnings)
				}
				v.Close()
			}
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d MiB were allocated", used>>20)
			}
			if len(doubts) == 0 {
				t.Fatal("the sizes were not doubted")
			}
			for len(doubts) > 0 {
				if i := <-doubts; i != 1 {
					t.Errorf("block %d is doubted", i)
				}
			}
			lying.mu.Lock()
			lying.blocks = full.blocks // as the reader of the bucket finds them
			lying.mu.Unlock()
			if err := s.remotes.refresh(context.Background()); err != nil {
				t.Fatal(err)
			}
			if counts := stored(t, s); len(counts) != 3 {
				t.Errorf("after the next list: %v", counts)
			}
		})
	}
}

// A size in the index of the bucket can be more than the memory for queries.
func TestView_IndexThatExceedsTheMemoryIsNamed(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	doubts := 0
	lying := &fakeRemote{blocks: full.blocks[:1:1]}
	head, err := block.Head(bytesOf(t, full.blocks[0].Index))
	if err != nil {
		t.Fatal(err)
	}
	lying.blocks[0].Head, lying.blocks[0].IndexBytes, lying.blocks[0].Doubt = head, 100<<20, func() { doubts++ }
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery = lying, time.Hour
		s.remotes = newRemotes(s)
		s.memory.max = 50 << 20
	})
	s.awaitList()
	if _, err := s.View(context.Background(), "t", 0, timeMax); !errors.Is(err, profiles.ErrLimit) || !strings.Contains(err.Error(), "the largest with 104857600 bytes of block bucket/"+lying.blocks[0].ID.String()) || doubts != 1 {
		t.Errorf("%v, doubted %d times", err, doubts)
	}
}
