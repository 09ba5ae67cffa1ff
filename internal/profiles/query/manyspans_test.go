package query

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// A block may have the rows of a service in as many places as it has rows. Its stacks are summed once.
func TestPartsOf_SumsOfAServiceAreHeldOnce(t *testing.T) {
	const rows, stacks = 1000, 20_000
	dir := t.TempDir()
	w, err := block.NewWriter(files.Disk{}, dir)
	must(t, err)
	content := &block.Content{Types: []profiles.Type{cpuType}, Parts: &block.PartsEncoder{}}
	for _, service := range []string{"a", "b"} {
		b := block.NewBuilder()
		for n := range stacks {
			b.Node(0, b.Frame(b.Function(block.Function{Name: b.String(fmt.Appendf(nil, "f%d", n))}), 0))
		}
		must(t, content.Parts.Add(service, &b.Symbols))
		plain := cpuLabels(service)
		content.Series = append(content.Series, block.Series{Type: 0, Plain: plain, Labels: block.FullLabels(plain, block.TypeLabels(cpuType))})
	}
	for i := range rows { // of both in turn
		row := block.Row{Key: block.Key{TimeNS: int64(1000 + i)}, Series: uint32(i % 2), Dataset: string(rune('a' + i%2)), Values: []int64{1}}
		row.Stacks = []uint32{uint32(i%2*stacks + 1 + i)}
		binary.BigEndian.PutUint64(row.Key.ID[:], uint64(i+1))
		must(t, w.Add(&row))
	}
	must(t, w.Finish(content))
	src, err := block.Open(dir)
	must(t, err)
	defer src.Close()
	for part := range src.Parts() {
		if _, err := src.PartSymbols(part); err != nil {
			t.Fatal(err)
		}
	}
	var merged int64
	var before, after runtime.MemStats
	req := &profiles.MergeRequest{Type: cpuType}
	runtime.ReadMemStats(&before)
	err = mergeSource(context.Background(), &store.View{}, src, req, 0, 1<<60, &mergeScratch{}, func(_ *block.Symbols, sums []int64) error {
		for _, v := range sums {
			merged += v
		}
		return nil
	})
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || merged != rows || used > 32<<20 {
		t.Errorf("%d of %d, %d MiB allocated, %v", merged, rows, used>>20, err)
	}
}
