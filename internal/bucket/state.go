package bucket

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/oklog/ulid/v2"
)

// The state file lists the blocks of the directory that are in the bucket, in the format of
// Thanos' thanos.shipper.json. Thanos' sidecar and a Shipper can therefore replace each
// other, and Prometheus can be configured to compact only listed blocks
// (--storage.tsdb.delay-compact-file.path). The file saves requests to the bucket. If it is
// lost, the bucket is checked.

// readState returns the IDs in a state file; none if the file does not exist.
func readState(path string) ([]ulid.ULID, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var v struct {
		Version  int64    `json:"version"`
		Uploaded []string `json:"uploaded"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if v.Version != 1 {
		return nil, fmt.Errorf("%s: version %d is not known", path, v.Version)
	}
	var ids []ulid.ULID
	for _, text := range v.Uploaded {
		id, err := ulid.ParseStrict(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// writeState replaces the file atomically.
func writeState(fs files.FS, path string, ids []ulid.ULID) error {
	text, err := json.MarshalIndent(struct {
		Version  int         `json:"version"`
		Uploaded []ulid.ULID `json:"uploaded"`
	}{1, append([]ulid.ULID{}, ids...)}, "", "\t")
	if err != nil {
		return err
	}
	return files.WriteFile(fs, path, append(text, '\n'))
}
