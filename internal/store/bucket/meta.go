package bucket

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/jsontree"
	"github.com/ferula-io/ferula/promjson"
)

// ErrCorrupt is wrapped by errors about invalid files of a block.
var ErrCorrupt = errors.New("corrupt block")

// metaBytesMax is the size limit of a meta.json, which lists the sources of the block.
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
	sources    []ulid.ULID // level 1 blocks that it was compacted from
	files      []blockFile
	members    []jsontree.Member // all but the section thanos, as encoded
}

// blockFile is one file of a block; its name is relative to the block's folder.
type blockFile struct {
	name string
	size int64 // 0: unknown, as for meta.json itself
	hash string
}

// parseMeta parses a meta.json, with or without the section thanos.
func parseMeta(text []byte) (blockMeta, error) {
	var m blockMeta
	v, err := jsontree.Parse(text)
	if err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrCorrupt, metaFile, err)
	}
	if m.id, err = ulid.ParseStrict(v.Get("ulid").Text()); err != nil {
		return m, fmt.Errorf("%w: %s: ulid: %w", ErrCorrupt, metaFile, err)
	}
	if version, _ := v.Get("version").Int(); version != 1 {
		return m, fmt.Errorf("%w: %s: version %s is not known", ErrCorrupt, metaFile, v.Get("version").Raw)
	}
	var hasMin, hasMax bool
	m.mint, hasMin = v.Get("minTime").Int()
	m.maxt, hasMax = v.Get("maxTime").Int()
	if !hasMin || !hasMax || m.maxt < m.mint {
		return m, fmt.Errorf("%w: %s: minTime and maxTime", ErrCorrupt, metaFile)
	}
	m.samples, _ = v.Get("stats").Get("numSamples").Int()
	m.deleted, _ = v.Get("stats").Get("numTombstones").Int()
	m.level, _ = v.Get("compaction").Get("level").Int()
	for _, e := range v.Get("compaction").Get("sources").Elements() {
		if id, err := ulid.ParseStrict(e.Text()); err == nil {
			m.sources = append(m.sources, id)
		}
	}
	thanos := v.Get("thanos")
	m.resolution, _ = thanos.Get("downsample").Get("resolution").Int()
	builder := labels.NewScratchBuilder(8)
	for _, l := range thanos.Get("labels").Members() {
		builder.Add(l.Name, l.Value.Text())
	}
	builder.Sort()
	m.labels = builder.Labels()
	for _, f := range thanos.Get("files").Elements() {
		size, _ := f.Get("size_bytes").Int()
		m.files = append(m.files, blockFile{f.Get("rel_path").Text(), size, f.Get("hash").Get("value").Text()})
	}
	for _, member := range v.Members() {
		if member.Name != "thanos" {
			m.members = append(m.members, member)
		}
	}
	return m, nil
}

// appendMeta appends the meta.json of a shipped block: Prometheus' members as encoded, and
// the section thanos.
func appendMeta(dst []byte, m blockMeta, external labels.Labels, source string, files []blockFile, uploaded time.Time) []byte {
	dst = append(dst, '{')
	for _, member := range m.members {
		dst = append(dst, "\n\t"...)
		dst = promjson.AppendString(dst, member.Name)
		dst = append(dst, ": "...)
		dst = append(dst, member.Value.Raw...)
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
