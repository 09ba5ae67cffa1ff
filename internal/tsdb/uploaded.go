package tsdb

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/files"
)

// uploadedReadEvery is the interval at which the list of uploaded blocks is read again.
const uploadedReadEvery = time.Minute

// uploadedBlocks is the list of blocks that an uploader, such as Thanos' sidecar, has
// written to a file as {"version": 1, "uploaded": [ULID, ...]}.
type uploadedBlocks struct {
	path   string
	logger *slog.Logger

	mu      sync.Mutex
	listed  map[string]bool
	expires time.Time
}

// excluded reports whether a block must not be compacted yet: it is of level 1 and not
// uploaded. If the file cannot be read, no block is excluded, as in Prometheus: otherwise
// a missing uploader would stop all compaction.
func (u *uploadedBlocks) excluded(meta *tsdb.BlockMeta) bool {
	if meta.Compaction.Level > 1 {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); u.listed == nil || now.After(u.expires) {
		listed, err := readUploaded(u.path)
		if err != nil {
			u.logger.Warn("Failed to read the list of uploaded blocks, compacting without it", "err", err)
			u.listed = nil
			return false
		}
		u.listed, u.expires = listed, now.Add(uploadedReadEvery)
	}
	return !u.listed[meta.ULID.String()]
}

func readUploaded(path string) (map[string]bool, error) {
	content, err := files.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Uploaded []string `json:"uploaded"`
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	listed := map[string]bool{}
	for _, id := range file.Uploaded {
		listed[id] = true
	}
	return listed, nil
}
