package bucket

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
)

// ErrCorrupt is wrapped by errors about invalid files of a block.
var ErrCorrupt = errors.New("corrupt block")

// MetaBytesMax is the size limit of a meta.json. Its list of sources grows with each compaction.
const MetaBytesMax = 16 << 20

// Resolutions that Thanos downsamples to, in ms.
const (
	Raw  = int64(0)
	Fine = int64(5 * time.Minute / time.Millisecond)
	Hour = int64(time.Hour / time.Millisecond)
)

// Meta has the fields of a block's meta.json that are used.
type Meta struct {
	ID           ulid.ULID
	MinMS, MaxMS int64         // MaxMS is exclusive
	ResolutionMS int64         // Raw, Fine or Hour
	Labels       labels.Labels // external labels
	Sources      []ulid.ULID   // level 1 blocks from which the block was compacted
	Level        int
	Source       string    // component that uploaded the block
	Uploaded     time.Time // zero: unknown
	Index        int64     // bytes of the index; 0: unknown
	Segments     []Segment // chunk files in order; none: unknown
	Series       int64
	Samples      int64
	Chunks       int64
	Tombstones   int64
}

// Segment is one chunk file.
type Segment struct {
	Name  string // within the directory chunks
	Bytes int64  // 0: unknown
}

// metaJSON has the fields of a meta.json that are read and written.
type metaJSON struct {
	ULID    string `json:"ulid"`
	Version int64  `json:"version"`
	MinTime *int64 `json:"minTime"`
	MaxTime *int64 `json:"maxTime"`
	Stats   struct {
		NumSamples    int64 `json:"numSamples,omitempty"`
		NumSeries     int64 `json:"numSeries,omitempty"`
		NumChunks     int64 `json:"numChunks,omitempty"`
		NumTombstones int64 `json:"numTombstones,omitempty"`
	} `json:"stats"`
	Compaction struct {
		Level   int      `json:"level"`
		Sources []string `json:"sources,omitempty"`
	} `json:"compaction"`
	Thanos thanosJSON `json:"thanos"`
}

// thanosJSON is the section that Thanos adds to a meta.json.
type thanosJSON struct {
	Version    int               `json:"version,omitempty"`
	Labels     map[string]string `json:"labels"`
	Downsample struct {
		Resolution int64 `json:"resolution"`
	} `json:"downsample"`
	Source       string     `json:"source,omitempty"`
	SegmentFiles []string   `json:"segment_files,omitzero"`
	Files        []fileJSON `json:"files,omitempty"`
	IndexStats   *struct{}  `json:"index_stats,omitempty"`
	UploadTime   time.Time  `json:"upload_time,omitzero"`
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

// ParseMeta parses a meta.json, with or without the section thanos.
func ParseMeta(text []byte) (*Meta, error) {
	m, _, err := parseJSON(text)
	return m, err
}

func parseJSON(text []byte) (*Meta, *thanosJSON, error) {
	var v metaJSON
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, nil, err
	}
	id, err := ulid.ParseStrict(v.ULID)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("ulid: %w", err)
	case v.Version != 1:
		return nil, nil, fmt.Errorf("version %d is not known", v.Version)
	case v.MinTime == nil || v.MaxTime == nil:
		return nil, nil, errors.New("minTime or maxTime is missing")
	}
	m := &Meta{
		ID: id, MinMS: *v.MinTime, MaxMS: *v.MaxTime, ResolutionMS: v.Thanos.Downsample.Resolution,
		Labels: labels.FromMap(v.Thanos.Labels),
		Level:  v.Compaction.Level, Source: v.Thanos.Source, Uploaded: v.Thanos.UploadTime, Series: v.Stats.NumSeries,
		Samples: v.Stats.NumSamples, Chunks: v.Stats.NumChunks, Tombstones: v.Stats.NumTombstones,
	}
	if _, nameless := v.Thanos.Labels[""]; nameless {
		return nil, nil, errors.New("an external label has no name")
	}
	for _, source := range v.Compaction.Sources {
		if id, err := ulid.ParseStrict(source); err == nil {
			m.Sources = append(m.Sources, id)
		}
	}
	m.files(&v)
	return m, &v.Thanos, m.Check()
}

// Check returns an error for values that a block cannot have.
func (m *Meta) Check() error {
	switch {
	case m.MaxMS < m.MinMS:
		return errors.New("maxTime is before minTime")
	case m.ResolutionMS != Raw && m.ResolutionMS != Fine && m.ResolutionMS != Hour:
		return fmt.Errorf("resolution %d ms is not 0, 5m or 1h", m.ResolutionMS)
	case m.Index < 0 || m.Index > fileMax:
		return fmt.Errorf("size of %q", "index")
	}
	for _, s := range m.Segments {
		if !segmentName(s.Name) || s.Bytes < 0 || s.Bytes > fileMax {
			return fmt.Errorf("segment %q of %d bytes", s.Name, s.Bytes)
		}
	}
	return nil
}

// fileMax is the limit of the size of a file in bytes. No object store takes larger files, and the
// page numbers of a file of this size do not overflow.
const fileMax = 1 << 46

// files sets the sizes of the index and of the segments that meta.json lists.
func (m *Meta) files(v *metaJSON) {
	sizes := map[string]int64{}
	for _, f := range v.Thanos.Files {
		if f.RelPath == indexFile {
			m.Index = f.SizeBytes
		}
		if name, ok := strings.CutPrefix(f.RelPath, chunksDir+"/"); ok {
			sizes[name] = f.SizeBytes
		}
	}
	names := v.Thanos.SegmentFiles
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(sizes))
	}
	for _, name := range names {
		m.Segments = append(m.Segments, Segment{name, sizes[name]})
	}
	// Numbers of segments, in the order of references, have equally many digits.
	slices.SortFunc(m.Segments, func(a, b Segment) int { return strings.Compare(a.Name, b.Name) })
}

// segmentName reports whether a chunk file can have the name: a decimal number.
func segmentName(name string) bool {
	_, err := strconv.ParseUint(name, 10, 32)
	return err == nil && path.Base(name) == name
}

// AppendJSON appends the meta as a meta.json.
func (m *Meta) AppendJSON(dst []byte) ([]byte, error) {
	v := metaJSON{ULID: m.ID.String(), Version: 1, MinTime: &m.MinMS, MaxTime: &m.MaxMS}
	v.Stats.NumSamples, v.Stats.NumSeries, v.Stats.NumChunks = m.Samples, m.Series, m.Chunks
	v.Stats.NumTombstones = m.Tombstones
	v.Compaction.Level = m.Level
	for _, s := range m.Sources {
		v.Compaction.Sources = append(v.Compaction.Sources, s.String())
	}
	v.Thanos.Labels, v.Thanos.Downsample.Resolution, v.Thanos.Source, v.Thanos.UploadTime = m.Labels.Map(),
		m.ResolutionMS, m.Source, m.Uploaded
	if m.Index > 0 {
		v.Thanos.Files = append(v.Thanos.Files, fileJSON{RelPath: indexFile, SizeBytes: m.Index})
	}
	for _, s := range m.Segments {
		v.Thanos.Files = append(v.Thanos.Files, fileJSON{RelPath: chunksDir + "/" + s.Name, SizeBytes: s.Bytes})
	}
	text, err := json.Marshal(v)
	return append(dst, text...), err
}

// blockMeta is a meta.json that is shipped, or was.
type blockMeta struct {
	Meta
	files   []blockFile
	members map[string]json.RawMessage // fields of the JSON object without the section thanos, as encoded
}

// blockFile is one file of a block; its name is relative to the block's directory.
type blockFile struct {
	name string
	size int64  // 0: unknown, as for meta.json itself
	hash string // SHA-256 in hexadecimal digits; "": none
}

// parseMeta parses a meta.json of which encode can write another.
func parseMeta(text []byte) (m blockMeta, err error) {
	if err = json.Unmarshal(text, &m.members); err == nil {
		text, _ = json.Marshal(m.members) // in the order of encode: of names that differ in case, the last counts
		delete(m.members, "thanos")
	}
	var thanos *thanosJSON
	if err == nil {
		var parsed *Meta
		if parsed, thanos, err = parseJSON(text); err == nil {
			m.Meta = *parsed
		}
	}
	if err != nil {
		return blockMeta{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, metaFile, err)
	}
	for _, f := range thanos.Files {
		file := blockFile{name: f.RelPath, size: f.SizeBytes}
		if f.Hash != nil {
			file.hash = f.Hash.Value
		}
		m.files = append(m.files, file)
	}
	return m, nil
}

// encode returns the meta.json of a shipped block: Prometheus' fields as encoded, and the section thanos.
func (m blockMeta) encode(external labels.Labels, source string, files []blockFile,
	uploaded time.Time) ([]byte, error) {
	section := thanosJSON{
		Version: 1, Labels: external.Map(), Source: source, SegmentFiles: []string{}, IndexStats: &struct{}{},
		UploadTime: uploaded.UTC(),
	}
	section.Downsample.Resolution = m.ResolutionMS
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
