package tsdb

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/tsdb"
)

func TestUploadedBlocks_OnlyListedBlocksOfLevelOneAreCompacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thanos.shipper.json")
	u := &uploadedBlocks{path: path, logger: slog.New(slog.DiscardHandler)}
	block := func(id uint64, level int) *tsdb.BlockMeta {
		return &tsdb.BlockMeta{ULID: ulid.MustNew(id, nil), Compaction: tsdb.BlockMetaCompaction{Level: level}}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		u.expires = time.Time{}
	}
	for _, broken := range []string{"", "{", "[]x"} {
		if broken != "" {
			write(broken)
		}
		if u.excluded(block(1, 1)) {
			t.Errorf("without a readable list (%q) a block is excluded", broken)
		}
	}
	write(`{"version": 1, "uploaded": ["` + ulid.MustNew(1, nil).String() + `"]}`)
	if u.excluded(block(1, 1)) || !u.excluded(block(2, 1)) || u.excluded(block(2, 2)) {
		t.Error("excluded are not the blocks of level 1 that are not listed")
	}
	write(`{"version": 1}`)
	if !u.excluded(block(1, 1)) {
		t.Error("an empty list excludes no block")
	}
}

func TestOptions_TuningReachesPrometheus(t *testing.T) {
	given := Options{Dir: t.TempDir(), ChunkSegmentBytes: 1 << 20, HeadQueueSize: 7, SamplesPerChunk: 200, BlockReloadInterval: time.Hour, DelayedCompaction: true, CompactionDelayPercent: 33, MetadataInWAL: true}
	p := given.resolved().prometheus()
	if p.MaxBlockChunkSegmentSize != 1<<20 || p.HeadChunksWriteQueueSize != 7 || p.SamplesPerChunk != 200 || p.BlockReloadInterval != time.Hour || !p.EnableDelayedCompaction || p.CompactionDelayMaxPercent != 33 || !p.EnableMetadataWALRecords {
		t.Errorf("%+v", p)
	}
	p, want := Options{Dir: t.TempDir()}.resolved().prometheus(), tsdb.DefaultOptions()
	if p.MaxBlockChunkSegmentSize != want.MaxBlockChunkSegmentSize || p.SamplesPerChunk != want.SamplesPerChunk || p.BlockReloadInterval != want.BlockReloadInterval || p.EnableDelayedCompaction || p.CompactionDelayMaxPercent != want.CompactionDelayMaxPercent || p.EnableMetadataWALRecords {
		t.Errorf("%+v", p)
	}
	if err := (Options{Dir: t.TempDir(), SamplesPerChunk: -1}).Validate(); err == nil {
		t.Error("a negative number of samples per chunk is accepted")
	}
}
