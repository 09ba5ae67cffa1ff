package blocks

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// LinkToBucket adds a block to a bucket in a directory, under the given ID. The block's files are hard links, except
// meta.json, which gets the section that the shippers of sidecars add, with these external labels.
func LinkToBucket(block, bucket, id string, external map[string]string) error {
	text, err := os.ReadFile(filepath.Join(block, "meta.json"))
	if err != nil {
		return err
	}
	var meta map[string]any
	if err := json.Unmarshal(text, &meta); err != nil {
		return err
	}
	files, err := filesOf(block)
	if err != nil {
		return err
	}
	meta["ulid"] = id
	meta["compaction"] = map[string]any{"level": 1, "sources": []string{id}}
	meta["thanos"] = map[string]any{"labels": external, "downsample": map[string]int{"resolution": 0}, "source": "sidecar", "files": files}
	if text, err = json.Marshal(meta); err != nil {
		return err
	}
	to := filepath.Join(bucket, id)
	if err := os.MkdirAll(filepath.Join(to, "chunks"), 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Link(filepath.Join(block, f.Name), filepath.Join(to, f.Name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(to, "meta.json"), text, 0o644)
}

// file is a file of a block, as Thanos' shippers list it in meta.json.
type file struct {
	Name  string `json:"rel_path"`
	Bytes int64  `json:"size_bytes"`
}

func filesOf(block string) (all []file, err error) {
	err = filepath.WalkDir(block, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(block, path)
		if err != nil || entry.IsDir() || name != "index" && filepath.Dir(name) != "chunks" {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all = append(all, file{name, info.Size()})
		}
		return err
	})
	return all, err
}

// List returns the directories of the blocks in dir, in the order of their times.
func List(dir string) ([]string, error) {
	metas, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
	if err != nil {
		return nil, err
	}
	minTimes := map[string]int64{}
	var found []string
	for _, file := range metas {
		var meta struct{ MinTime int64 }
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &meta); err != nil {
			return nil, err
		}
		found = append(found, filepath.Dir(file))
		minTimes[filepath.Dir(file)] = meta.MinTime
	}
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(minTimes[a], minTimes[b]) })
	return found, nil
}
