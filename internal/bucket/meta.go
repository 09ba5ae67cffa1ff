package bucket

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/promjson"
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
	members    []member // fields of the JSON object without the section thanos, as encoded
}

// blockFile is one file of a block; its name is relative to the block's directory.
type blockFile struct {
	name string
	size int64  // 0: unknown, as for meta.json itself
	hash string // SHA-256 in hexadecimal digits; "": none
}

// member is a field of a JSON object. Its value is as encoded.
type member struct {
	name  string
	value json.RawMessage
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
	Thanos struct {
		Labels     map[string]string `json:"labels"`
		Downsample struct {
			Resolution int64 `json:"resolution"`
		} `json:"downsample"`
		Files []struct {
			RelPath   string `json:"rel_path"`
			SizeBytes int64  `json:"size_bytes"`
			Hash      struct {
				Value string `json:"value"`
			} `json:"hash"`
		} `json:"files"`
	} `json:"thanos"`
}

// parseMeta parses a meta.json, with or without the section thanos.
func parseMeta(text []byte) (blockMeta, error) {
	var v metaJSON
	if err := json.Unmarshal(text, &v); err != nil {
		return blockMeta{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, metaFile, err)
	}
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
	}
	for _, source := range v.Compaction.Sources {
		if id, err := ulid.ParseStrict(source); err == nil {
			m.sources = append(m.sources, id)
		}
	}
	for _, f := range v.Thanos.Files {
		m.files = append(m.files, blockFile{f.RelPath, f.SizeBytes, f.Hash.Value})
	}
	if m.members, err = membersOf(text); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrCorrupt, metaFile, err)
	}
	m.members = slices.DeleteFunc(m.members, func(m member) bool { return m.name == "thanos" })
	return m, nil
}

// membersOf returns the fields of a JSON object in their order.
func membersOf(text []byte) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	var all []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := member{name: fmt.Sprint(name)}
		if err := d.Decode(&m.value); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// appendMeta appends the meta.json of a shipped block: Prometheus' fields as encoded, and
// the section thanos.
func appendMeta(dst []byte, m blockMeta, external labels.Labels, source string, files []blockFile,
	uploaded time.Time) []byte {
	dst = append(dst, '{')
	for _, member := range m.members {
		dst = append(dst, "\n\t"...)
		dst = promjson.AppendString(dst, member.name)
		dst = append(dst, ": "...)
		dst = append(dst, member.value...)
		dst = append(dst, ',')
	}
	dst = append(dst, "\n\t\"thanos\": {\n\t\t\"version\": 1,\n\t\t\"labels\": {"...)
	separator := "\n\t\t\t"
	external.Range(func(l labels.Label) {
		dst = append(dst, separator...)
		dst = promjson.AppendString(dst, l.Name)
		dst = append(dst, ": "...)
		dst = promjson.AppendString(dst, l.Value)
		separator = ",\n\t\t\t"
	})
	dst = append(dst, "\n\t\t},\n\t\t\"downsample\": {\n\t\t\t\"resolution\": "...)
	dst = strconv.AppendInt(dst, m.resolution, 10)
	dst = append(dst, "\n\t\t},\n\t\t\"source\": "...)
	dst = promjson.AppendString(dst, source)
	dst = append(dst, ",\n\t\t\"segment_files\": ["...)
	separator = "\n\t\t\t"
	for _, f := range files {
		if segment, ok := strings.CutPrefix(f.name, chunksDir+"/"); ok {
			dst = append(dst, separator...)
			dst = promjson.AppendString(dst, segment)
			separator = ",\n\t\t\t"
		}
	}
	dst = append(dst, "\n\t\t],\n\t\t\"files\": ["...)
	dst = appendFiles(dst, files)
	dst = append(dst, "\n\t\t],\n\t\t\"index_stats\": {},\n\t\t\"upload_time\": \""...)
	dst = uploaded.UTC().AppendFormat(dst, time.RFC3339Nano)
	return append(dst, "\"\n\t}\n}\n"...)
}

// appendFiles appends the files sorted by name, including meta.json, whose size is unknown
// before it is written.
func appendFiles(dst []byte, files []blockFile) []byte {
	sorted := append(slices.Clone(files), blockFile{name: metaFile})
	slices.SortFunc(sorted, func(a, b blockFile) int { return strings.Compare(a.name, b.name) })
	separator := "\n\t\t\t{"
	for _, f := range sorted {
		dst = append(dst, separator...)
		dst = append(dst, "\n\t\t\t\t\"rel_path\": "...)
		dst = promjson.AppendString(dst, f.name)
		if f.size > 0 {
			dst = append(dst, ",\n\t\t\t\t\"size_bytes\": "...)
			dst = strconv.AppendInt(dst, f.size, 10)
		}
		if f.hash != "" {
			dst = append(dst, ",\n\t\t\t\t\"hash\": {\n\t\t\t\t\t\"hashFunc\": \"SHA256\",\n\t\t\t\t\t\"value\": "...)
			dst = promjson.AppendString(dst, f.hash)
			dst = append(dst, "\n\t\t\t\t}"...)
		}
		dst = append(dst, "\n\t\t\t}"...)
		separator = ",\n\t\t\t{"
	}
	return dst
}
