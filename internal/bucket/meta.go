package bucket

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
)

// ErrCorrupt is wrapped by errors about invalid files of a block.
var ErrCorrupt = errors.New("corrupt block")

// metaBytesMax is the size limit of a meta.json. Its list of sources grows with each compaction.
const metaBytesMax = 16 << 20

// blockMeta is the part of a meta.json that shipping needs. maxt is exclusive.
type blockMeta struct {
	id         ulid.ULID
	mint, maxt int64
	samples    int64
	level      int64
	deleted    int64 // tombstones
	resolution int64 // downsampling resolution in ms
	labels     labels.Labels
	sources    []ulid.ULID // level 1 blocks from which the block was compacted
	files      []blockFile
	members    map[string]json.RawMessage // fields of the JSON object without the section thanos, as encoded
}

// blockFile is one file of a block; its name is relative to the block's directory.
type blockFile struct {
	name string
	size int64  // 0: unknown, as for meta.json itself
	hash string // SHA-256 in hexadecimal digits; "": none
}

// metaJSON has the fields of a meta.json that are read.
type metaJSON struct {
	ULID    string `json:"ulid"`
	Version int64  `json:"version"`
	MinTime *int64 `json:"minTime"`
	MaxTime *int64 `json:"maxTime"`
	Stats   struct {
		NumSamples    int64 `json:"numSamples"`
		NumTombstones int64 `json:"numTombstones"`
	} `json:"stats"`
	Compaction struct {
		Level   int64    `json:"level"`
		Sources []string `json:"sources"`
	} `json:"compaction"`
	Thanos thanosJSON `json:"thanos"`
}

// thanosJSON is the section that Thanos adds to a meta.json.
type thanosJSON struct {
	Version    int               `json:"version"`
	Labels     map[string]string `json:"labels"`
	Downsample struct {
		Resolution int64 `json:"resolution"`
	} `json:"downsample"`
	Source       string     `json:"source"`
	SegmentFiles []string   `json:"segment_files"`
	Files        []fileJSON `json:"files"`
	IndexStats   struct{}   `json:"index_stats"`
	UploadTime   string     `json:"upload_time"`
}

type fileJSON struct {
	RelPath   string    `json:"rel_path"`
	SizeBytes int64     `json:"size_bytes,omitempty"`
	Hash      *hashJSON `json:"hash,omitempty"`
}

type hashJSON struct {
	Func  string `json:"hashFunc"`
	Value string `json:"value"`
}

// parseMeta parses a meta.json, with or without the section thanos.
func parseMeta(text []byte) (blockMeta, error) {
	var v metaJSON
	var members map[string]json.RawMessage
	err := json.Unmarshal(text, &members)
	if err == nil {
		text, _ = json.Marshal(members) // in the order of encode: of names that differ in case, the last counts
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		return blockMeta{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, metaFile, err)
	}
	delete(members, "thanos")
	id, err := ulid.ParseStrict(v.ULID)
	switch {
	case err != nil:
		return blockMeta{}, fmt.Errorf("%w: %s: ulid: %w", ErrCorrupt, metaFile, err)
	case v.Version != 1:
		return blockMeta{}, fmt.Errorf("%w: %s: version %d is not known", ErrCorrupt, metaFile, v.Version)
	case v.MinTime == nil || v.MaxTime == nil || *v.MaxTime < *v.MinTime:
		return blockMeta{}, fmt.Errorf("%w: %s: minTime or maxTime is missing, or maxTime is before minTime",
			ErrCorrupt, metaFile)
	}
	m := blockMeta{
		id: id, mint: *v.MinTime, maxt: *v.MaxTime, samples: v.Stats.NumSamples, level: v.Compaction.Level,
		deleted: v.Stats.NumTombstones, resolution: v.Thanos.Downsample.Resolution, labels: labels.FromMap(v.Thanos.Labels),
		members: members,
	}
	for _, source := range v.Compaction.Sources {
		if id, err := ulid.ParseStrict(source); err == nil {
			m.sources = append(m.sources, id)
		}
	}
	for _, f := range v.Thanos.Files {
		file := blockFile{name: f.RelPath, size: f.SizeBytes}
		if f.Hash != nil {
			file.hash = f.Hash.Value
		}
		m.files = append(m.files, file)
	}
	return m, nil
}

// encode returns the meta.json of a shipped block: Prometheus' fields as encoded, and the section thanos.
func (m blockMeta) encode(external labels.Labels, source string, files []blockFile, uploaded time.Time) ([]byte, error) {
	section := thanosJSON{
		Version: 1, Labels: external.Map(), Source: source, SegmentFiles: []string{},
		UploadTime: uploaded.UTC().Format(time.RFC3339Nano),
	}
	section.Downsample.Resolution = m.resolution
	// The size of meta.json itself is unknown before it is written.
	files = append(slices.Clone(files), blockFile{name: metaFile})
	slices.SortFunc(files, func(a, b blockFile) int { return strings.Compare(a.name, b.name) })
	for _, f := range files {
		file := fileJSON{RelPath: f.name, SizeBytes: f.size}
		if f.hash != "" {
			file.Hash = &hashJSON{"SHA256", f.hash}
		}
		section.Files = append(section.Files, file)
		if segment, ok := strings.CutPrefix(f.name, chunksDir+"/"); ok {
			section.SegmentFiles = append(section.SegmentFiles, segment)
		}
	}
	all := map[string]any{"thanos": section}
	for name, value := range m.members {
		all[name] = value
	}
	text, err := json.MarshalIndent(all, "", "\t")
	return append(text, '\n'), err
}
