// Package metas lists the blocks of a bucket in Thanos' layout.
//
// List reads the directories of a bucket, the meta.json of each new block and the deletion
// mark of every block, and returns the blocks that a store should serve. Thanos' rules select
// them: time range, sharding by relabelling, consistency delay and deletion marks. A block that
// a compacted block covers is left out. The content of a meta.json does not change. So a valid
// meta.json is read once, and again only if a file of the block was missing or corrupt (Forget). A
// snapshot in a local file keeps the content for the next start. Index and chunks are not read.
package metas

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

// ErrCorrupt is returned for a meta.json that is not valid.
var ErrCorrupt = errors.New("corrupt meta.json")

// Resolutions that Thanos downsamples to, in ms.
const (
	Raw  = int64(0)
	Fine = int64(5 * time.Minute / time.Millisecond)
	Hour = int64(time.Hour / time.Millisecond)
)

// Meta has the fields of a block's meta.json that a store needs.
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
}

// Segment is one chunk file.
type Segment struct {
	Name  string // within the directory chunks
	Bytes int64  // 0: unknown
}

// metaJSON has the fields of a meta.json that are read.
type metaJSON struct {
	ULID    string `json:"ulid"`
	Version int    `json:"version"`
	MinTime *int64 `json:"minTime"`
	MaxTime *int64 `json:"maxTime"`
	Stats   struct {
		NumSamples int64 `json:"numSamples,omitempty"`
		NumSeries  int64 `json:"numSeries,omitempty"`
		NumChunks  int64 `json:"numChunks,omitempty"`
	} `json:"stats"`
	Compaction struct {
		Level   int      `json:"level"`
		Sources []string `json:"sources,omitempty"`
	} `json:"compaction"`
	Thanos struct {
		Labels     map[string]string `json:"labels"`
		Downsample struct {
			Resolution int64 `json:"resolution"`
		} `json:"downsample"`
		Source       string     `json:"source,omitempty"`
		SegmentFiles []string   `json:"segment_files,omitempty"`
		Files        []fileJSON `json:"files,omitempty"`
		UploadTime   time.Time  `json:"upload_time,omitzero"`
	} `json:"thanos"`
}

type fileJSON struct {
	RelPath   string `json:"rel_path"`
	SizeBytes int64  `json:"size_bytes,omitempty"`
}

// Parse parses the meta.json of the block id.
func Parse(id ulid.ULID, text []byte) (*Meta, error) {
	m, err := parse(text)
	if err == nil && m.ID != id {
		return nil, fmt.Errorf("%w: it names block %s", ErrCorrupt, m.ID)
	}
	return m, err
}

func parse(text []byte) (*Meta, error) {
	var v metaJSON
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	id, err := ulid.ParseStrict(v.ULID)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: ulid: %w", ErrCorrupt, err)
	case v.Version != 1:
		return nil, fmt.Errorf("%w: version %d is not known", ErrCorrupt, v.Version)
	case v.MinTime == nil || v.MaxTime == nil:
		return nil, fmt.Errorf("%w: minTime or maxTime is missing", ErrCorrupt)
	}
	m := &Meta{
		ID: id, MinMS: *v.MinTime, MaxMS: *v.MaxTime, ResolutionMS: v.Thanos.Downsample.Resolution,
		Labels: labels.FromMap(v.Thanos.Labels),
		Level:  v.Compaction.Level, Source: v.Thanos.Source, Uploaded: v.Thanos.UploadTime,
		Series: v.Stats.NumSeries, Samples: v.Stats.NumSamples, Chunks: v.Stats.NumChunks,
	}
	if _, nameless := v.Thanos.Labels[""]; nameless {
		return nil, fmt.Errorf("%w: an external label has no name", ErrCorrupt)
	}
	for _, source := range v.Compaction.Sources {
		if id, err := ulid.ParseStrict(source); err == nil {
			m.Sources = append(m.Sources, id)
		}
	}
	m.files(&v)
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return m, nil
}

// check returns an error for values that a block cannot have.
func (m *Meta) check() error {
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
		if f.RelPath == "index" {
			m.Index = f.SizeBytes
		}
		if name, ok := strings.CutPrefix(f.RelPath, "chunks/"); ok {
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
	v.Compaction.Level = m.Level
	for _, s := range m.Sources {
		v.Compaction.Sources = append(v.Compaction.Sources, s.String())
	}
	v.Thanos.Labels, v.Thanos.Downsample.Resolution, v.Thanos.Source, v.Thanos.UploadTime = m.Labels.Map(),
		m.ResolutionMS, m.Source, m.Uploaded
	if m.Index > 0 {
		v.Thanos.Files = append(v.Thanos.Files, fileJSON{"index", m.Index})
	}
	for _, s := range m.Segments {
		v.Thanos.Files = append(v.Thanos.Files, fileJSON{"chunks/" + s.Name, s.Bytes})
	}
	text, err := json.Marshal(v)
	return append(dst, text...), err
}
