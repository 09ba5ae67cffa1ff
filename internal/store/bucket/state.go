package bucket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/jsontree"
)

// The state file lists the blocks of the folder that are in the bucket, in the format of
// Thanos' thanos.shipper.json. Either program can take over from the other, and Prometheus
// can be configured to compact only listed blocks
// (--storage.tsdb.delay-compact-file.path). The file saves requests to the bucket; if it
// is lost, the bucket is checked.

// readState returns no IDs for a missing file.
func readState(path string) ([]ulid.ULID, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v, err := jsontree.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if version, _ := v.Get("version").Int(); version != 1 {
		return nil, fmt.Errorf("%s: version %q is not known", path, v.Get("version").Raw)
	}
	var ids []ulid.ULID
	for _, e := range v.Get("uploaded").Elements() {
		id, err := ulid.ParseStrict(e.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// writeState replaces the file atomically.
func writeState(path string, ids []ulid.ULID) error {
	text := []byte("{\n\t\"version\": 1,\n\t\"uploaded\": [")
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, "\n\t\t\""...)
		text = append(text, id.String()...)
		text = append(text, '"')
	}
	if len(ids) > 0 {
		text = append(text, "\n\t"...)
	}
	text = append(text, "]\n}\n"...)
	tmp := path + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, disk.sync(f), f.Close()); err != nil {
		return err
	}
	if err := disk.rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// disk are the calls that make a file durable, in order; tests record them.
var disk = struct {
	sync   func(f *os.File) error
	rename func(from, to string) error
}{(*os.File).Sync, os.Rename}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(disk.sync(d), d.Close())
}
