package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/metrics"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

const someULID = "01HF0000000000000000000000"

func TestParseMeta_ChecksItsFields(t *testing.T) {
	for name, tt := range map[string]struct {
		text, fault string
	}{
		"least":          {`{"ulid":"` + someULID + `","version":1,"minTime":0,"maxTime":0}`, ""},
		"another id":     {`{"ulid":"x","version":1,"minTime":0,"maxTime":1}`, "ulid"},
		"no id":          {`{"version":1,"minTime":0,"maxTime":1}`, "ulid"},
		"no version":     {`{"ulid":"` + someULID + `","minTime":0,"maxTime":1}`, "version 0"},
		"version 2":      {`{"ulid":"` + someULID + `","version":2,"minTime":0,"maxTime":1}`, "version 2"},
		"no start":       {`{"ulid":"` + someULID + `","version":1,"maxTime":1}`, "minTime"},
		"no end":         {`{"ulid":"` + someULID + `","version":1,"minTime":0}`, "maxTime"},
		"end of nothing": {`{"ulid":"` + someULID + `","version":1,"minTime":1,"maxTime":0}`, "before"},
		"no JSON":        {`{`, "meta.json"},
		"a list":         {`[]`, "meta.json"},
	} {
		m, err := parseMeta([]byte(tt.text))
		if (err == nil) != (tt.fault == "") || err != nil && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	m, err := parseMeta([]byte(`{"ulid":"` + someULID + `","version":1,"minTime":3,"maxTime":5,"stats":{"numSamples":7,"numTombstones":8},"compaction":{"level":2,"sources":["` + someULID + `","x"]},
		"thanos":{"labels":{"a":"b"},"downsample":{"resolution":300000},"files":[{"rel_path":"index","size_bytes":9,"hash":{"value":"ab"}},{"rel_path":"meta.json"}]},"more":{"x":[1]}}`))
	if err != nil || m.ID.String() != someULID || m.MinMS != 3 || m.MaxMS != 5 || m.Samples != 7 || m.Tombstones != 8 || m.Level != 2 || len(m.Sources) != 1 || m.ResolutionMS != 300_000 || m.Labels.Get("a") != "b" {
		t.Errorf("%+v, %v", m, err)
	}
	if !slices.Equal(m.files, []blockFile{{"index", 9, "ab"}, {"meta.json", 0, ""}}) {
		t.Errorf("%+v", m.files)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(m.members)), " "); got != "compaction maxTime minTime more stats ulid version" || string(m.members["more"]) != `{"x":[1]}` {
		t.Errorf("%s", got)
	}
}

func TestEncodeMeta_IsTheFormatOfThanos(t *testing.T) {
	m, err := parseMeta([]byte(`{"ulid":"` + someULID + `", "version":1, "minTime":3, "maxTime":5, "x":{"y":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	m.ResolutionMS = 300_000
	text, err := m.encode(labels.FromStrings("a", "b", "c", `"d"`), "ferula", []blockFile{{"index", 9, "ab"}, {"chunks/000001", 5, ""}, {"chunks/000002", 6, ""}}, time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	got, want := string(text), `{
	"maxTime": 5,
	"minTime": 3,
	"thanos": {
		"version": 1,
		"labels": {
			"a": "b",
			"c": "\"d\""
		},
		"downsample": {
			"resolution": 300000
		},
		"source": "ferula",
		"segment_files": [
			"000001",
			"000002"
		],
		"files": [
			{
				"rel_path": "chunks/000001",
				"size_bytes": 5
			},
			{
				"rel_path": "chunks/000002",
				"size_bytes": 6
			},
			{
				"rel_path": "index",
				"size_bytes": 9,
				"hash": {
					"hashFunc": "SHA256",
					"value": "ab"
				}
			},
			{
				"rel_path": "meta.json"
			}
		],
		"index_stats": {},
		"upload_time": "2023-11-14T22:13:20Z"
	},
	"ulid": "`+someULID+`",
	"version": 1,
	"x": {
		"y": 1
	}
}
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestState_IsTheFormatOfThanos(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	if ids, err := readState(path); ids != nil || err != nil {
		t.Errorf("no file: %v, %v", ids, err)
	}
	a, b := ulid.MustParse(someULID), ulid.Make()
	for _, tt := range []struct {
		ids  []ulid.ULID
		want string
	}{
		{nil, "{\n\t\"version\": 1,\n\t\"uploaded\": []\n}\n"},
		{[]ulid.ULID{a}, "{\n\t\"version\": 1,\n\t\"uploaded\": [\n\t\t\"" + someULID + "\"\n\t]\n}\n"},
		{[]ulid.ULID{a, b}, "{\n\t\"version\": 1,\n\t\"uploaded\": [\n\t\t\"" + someULID + "\",\n\t\t\"" + b.String() + "\"\n\t]\n}\n"},
	} {
		if err := writeState(files.Disk{}, path, tt.ids); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != tt.want {
			t.Errorf("%q, %v", text, err)
		}
		if ids, err := readState(path); err != nil || !slices.Equal(ids, tt.ids) {
			t.Errorf("%v, %v", ids, err)
		}
	}
	for text, want := range map[string]string{
		"{": "JSON", `{"version":2}`: "version 2 is not known", `{}`: "version 0 is not known", `{"version":1,"uploaded":["x"]}`: "ulid",
	} {
		writeFile(t, path, text)
		if ids, err := readState(path); err == nil || ids != nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", text, ids, err)
		}
	}
	if _, err := readState(filepath.Dir(path)); err == nil {
		t.Error("a directory is read as a state file")
	}
}

func TestView_FilesThatAreMissingOrEmptyCloseTheOthers(t *testing.T) {
	for name, breaks := range map[string]func(dir string){
		"no meta.json":       func(dir string) { removeAll(t, filepath.Join(dir, metaFile)) },
		"another meta.json":  func(dir string) { replaceIn(t, filepath.Join(dir, metaFile), filepath.Base(dir), someULID) },
		"no chunks":          func(dir string) { removeAll(t, filepath.Join(dir, chunksDir)) },
		"no index":           func(dir string) { removeAll(t, filepath.Join(dir, indexFile)) },
		"an empty index":     func(dir string) { writeFile(t, filepath.Join(dir, indexFile), "") },
		"an empty segment":   func(dir string) { writeFile(t, filepath.Join(dir, chunksDir, "000002"), "") },
		"a folder of chunks": func(dir string) { mkdir(t, filepath.Join(dir, chunksDir, "000002")) },
	} {
		root := t.TempDir()
		dir := filepath.Join(root, makeBlock(t, root, 0).String())
		breaks(dir)
		v, err := openView(dir)
		corrupt := name != "no meta.json" && name != "no chunks" && name != "no index"
		if v != nil || err == nil || errors.Is(err, ErrCorrupt) != corrupt || errors.Is(err, os.ErrNotExist) == corrupt {
			t.Errorf("%s: %v", name, err)
		}
		if names := openBelow(t, root); len(names) > 0 {
			t.Errorf("%s: open %q", name, names)
		}
	}
	root := t.TempDir()
	v, err := openView(filepath.Join(root, makeBlock(t, root, 0).String()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := v.addHashes(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	v.close()
	if err := v.addHashes(context.Background()); err == nil || !strings.HasPrefix(err.Error(), "chunks/000001: ") {
		t.Errorf("hashes of closed files: %v", err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func replaceIn(t *testing.T, path, from, to string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), from) {
		t.Fatalf("%s in %s: %v", from, text, err)
	}
	writeFile(t, path, strings.ReplaceAll(string(text), from, to))
}

func TestNewShipper_ChecksItsOptions(t *testing.T) {
	some := func() labels.Labels { return external }
	for name, tt := range map[string]struct {
		opts ShipOptions
		ok   bool
	}{
		"least": {ShipOptions{Dir: "a", Labels: some}, true}, "no directory": {ShipOptions{Labels: some}, false}, "no labels": {ShipOptions{Dir: "a"}, false},
		"concurrency": {ShipOptions{Dir: "a", Labels: some, Concurrency: -1}, false}, "a path": {ShipOptions{Dir: "a", Labels: some, StateFile: "b/c"}, false}, "a file": {ShipOptions{Dir: "a", Labels: some, StateFile: "b"}, true},
	} {
		if s, err := NewShipper(objstore.NewInMemBucket(), tt.opts, quiet, metrics.NewSet()); (err == nil) != tt.ok || (s != nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShipper_MetricsAndStatusOfSyncs(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	makeBlock(t, dir, 1)
	now := time.Unix(1_700_000_000, 0)
	ill := &sick{to, errFault}
	set := metrics.NewSet()
	opts := ShipOptions{Dir: dir, Labels: func() labels.Labels { return external }, Now: func() time.Time { return now }}
	s, err := NewShipper(ill, opts, quiet, set)
	if err != nil {
		t.Fatal(err)
	}
	ctx, m := context.Background(), &s.metrics
	for i := range 2 {
		if n, err := s.Sync(ctx); n != 0 || !errors.Is(err, errFault) {
			t.Fatal(n, err)
		}
		if st := s.Status(); !st.FailingFrom.Equal(time.Unix(1_700_000_000, 0)) || !st.LastSuccess.IsZero() || st.Waiting != 2 || !errors.Is(st.Err, errFault) {
			t.Errorf("%+v", st)
		}
		if n := uint64(i + 1); m.syncFailures.Get() != n || m.uploadFailures.Get() != n || m.syncs.Get() != 0 || m.uploads.Get() != 0 || m.bytes.Get() != 0 || m.waiting.Get() != 2 {
			t.Errorf("failures: %d, %d; successes: %d, %d", m.syncFailures.Get(), m.uploadFailures.Get(), m.syncs.Get(), m.uploads.Get())
		}
		now = now.Add(time.Minute)
	}
	ill.err = nil
	mustSync(t, s, 2)
	var sum uint64
	for _, text := range objects(t, to) {
		sum += uint64(len(text))
	}
	if m.syncs.Get() != 1 || m.uploads.Get() != 2 || m.bytes.Get() != sum || m.waiting.Get() != 0 || m.lastSuccess.Get() != 1_700_000_120 || m.compactedDone.Get() != 0 || m.corrupted.Get() != 0 || m.lost.Get() != 0 {
		t.Errorf("%d syncs, %d uploads of %d bytes, last %f, compacted %f", m.syncs.Get(), m.uploads.Get(), m.bytes.Get(), m.lastSuccess.Get(), m.compactedDone.Get())
	}
	if st := s.Status(); !st.FailingFrom.IsZero() || !st.LastSuccess.Equal(now) || st.Waiting != 0 || st.Err != nil {
		t.Errorf("%+v", st)
	}
	s.opts.UploadCompacted = true
	mustSync(t, s, 0)
	if m.compactedDone.Get() != 1 {
		t.Error("compacted blocks are not done")
	}
	s.opts.UploadCompacted = false
	mustSync(t, s, 0)
	if m.compactedDone.Get() != 0 {
		t.Error("compacted blocks are done")
	}
	for _, f := range set.Families() {
		if f.Help == "" {
			t.Errorf("%s has no help", f.Name)
		}
	}
}

// refusing is a bucket that refuses uploads of some blocks.
type refusing struct {
	objstore.Bucket
	ids []ulid.ULID
}

func (r *refusing) Upload(ctx context.Context, name string, body io.Reader, o ...objstore.ObjectUploadOption) error {
	for _, id := range r.ids {
		if strings.HasPrefix(name, id.String()) {
			return errFault
		}
	}
	return r.Bucket.Upload(ctx, name, body, o...)
}

func TestShipper_LaterBlocksWaitUnlessTheOrderDoesNotMatter(t *testing.T) {
	for _, anyOrder := range []bool{false, true} {
		dir, to := t.TempDir(), objstore.NewInMemBucket()
		last, middle, first := makeBlock(t, dir, 2), makeBlock(t, dir, 1), makeBlock(t, dir, 0)
		s := newShipper(t, &refusing{to, []ulid.ULID{middle}}, dir, func(o *ShipOptions) { o.AllowOutOfOrder = anyOrder })
		n, err := s.Sync(context.Background())
		want, waiting, have := 1, 2, []ulid.ULID{first}
		if anyOrder {
			want, waiting, have = 2, 1, []ulid.ULID{first, last}
		}
		slices.SortFunc(have, ulid.ULID.Compare)
		if n != want || !errors.Is(err, errFault) || !strings.Contains(err.Error(), "block "+middle.String()) || s.Status().Waiting != waiting || !slices.Equal(trusted(t, to, dir), have) {
			t.Errorf("any order %v: %d uploaded, %d waiting, %v", anyOrder, n, s.Status().Waiting, err)
		}
		if listed, err := readState(filepath.Join(dir, "thanos.shipper.json")); err != nil || len(listed) != want {
			t.Errorf("any order %v: listed %v, %v", anyOrder, listed, err)
		}
	}
}

func TestShipper_BlocksBehindAnUnreadableOneAreWaiting(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	makeBlock(t, dir, 1)
	setLevel(t, dir, makeBlock(t, dir, 2), `"version"`, `"version`)
	s := newShipper(t, to, dir, nil)
	if _, err := s.Sync(context.Background()); !errors.Is(err, ErrCorrupt) || s.Status().Waiting != 3 || s.metrics.corrupted.Get() != 1 {
		t.Errorf("%v, %d waiting, %d corrupt", err, s.Status().Waiting, s.metrics.corrupted.Get())
	}
	if _, err := newShipper(t, to, filepath.Join(dir, "none"), nil).Sync(context.Background()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestShipper_EmptyBlockIsNotShipped(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	id := makeBlock(t, dir, 0)
	setLevel(t, dir, id, `"numSamples": 600`, `"numSamples": 0`)
	s := newShipper(t, to, dir, nil)
	mustSync(t, s, 0)
	if len(objects(t, to)) != 0 || s.Status().Waiting != 0 {
		t.Errorf("%s, %+v", names(objects(t, to)), s.Status())
	}
	setLevel(t, dir, id, `"numSamples": 0`, `"numSamples": 1`)
	mustSync(t, s, 1)
}

// A block that another program has shipped, whose meta.json does not list its files.
func TestShipper_BlockWithoutAListOfFilesIsWholeWithItsIndex(t *testing.T) {
	for _, withIndex := range []bool{true, false} {
		dir, to := t.TempDir(), objstore.NewInMemBucket()
		id := makeBlock(t, dir, 0)
		text, err := os.ReadFile(filepath.Join(dir, id.String(), metaFile))
		if err == nil {
			err = to.Upload(context.Background(), id.String()+"/meta.json", strings.NewReader(string(text)))
		}
		if err == nil && withIndex {
			err = to.Upload(context.Background(), id.String()+"/index", strings.NewReader("of any size"))
		}
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if withIndex {
			want = 0
		}
		mustSync(t, newShipper(t, to, dir, nil), want)
	}
}

func TestShipper_MetaOfAnotherBlockIsReplaced(t *testing.T) {
	dir, to := t.TempDir(), &bodies{Bucket: objstore.NewInMemBucket()}
	id := makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, to, dir, nil), 1)
	text := strings.ReplaceAll(string(objects(t, to)[id.String()+"/meta.json"]), id.String(), someULID)
	if err := to.Upload(context.Background(), id.String()+"/meta.json", strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	removeAll(t, filepath.Join(dir, "thanos.shipper.json"))
	mustSync(t, newShipper(t, to, dir, nil), 1)
	if got := trusted(t, to, dir); len(got) != 1 || to.open != 0 {
		t.Errorf("%v, %d bodies are open", got, to.open)
	}
}

// Blocks that meet do not overlap.
func TestShipper_CompactedBlocksNextToOthersAreShipped(t *testing.T) {
	compacted := func(o *ShipOptions) { o.UploadCompacted = true }
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 1)
	mustSync(t, newShipper(t, to, dir, nil), 1)
	if err := to.Upload(context.Background(), someULID+"/meta.json", strings.NewReader("{")); err != nil { // not read
		t.Fatal(err)
	}
	for n, want := range map[int]bool{0: true, 1: false, 2: true} {
		other := t.TempDir()
		setLevel(t, other, makeBlock(t, other, n), `"level": 1`, `"level": 2`)
		uploaded, err := newShipper(t, to, other, compacted).Sync(context.Background())
		if (err == nil && uploaded == 1) != want || errors.Is(err, ErrOverlap) == want {
			t.Errorf("block %d: %d, %v", n, uploaded, err)
		}
		if !want {
			mustSync(t, newShipper(t, to, other, func(o *ShipOptions) { o.UploadCompacted, o.AllowOutOfOrder = true, true }), 1)
		}
	}
	other := t.TempDir()
	setLevel(t, other, makeBlock(t, other, 5), `"level": 1`, `"level": 2`)
	s := newShipper(t, unlistable{to}, other, compacted)
	if _, err := s.Sync(context.Background()); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "list the bucket: ") {
		t.Error(err)
	}
}

// The first sync returns the errors of what Expect cannot read.
func TestShipper_ExpectIgnoresErrors(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	writeFile(t, filepath.Join(dir, "thanos.shipper.json"), "{")
	s := newShipper(t, to, dir, nil)
	s.Expect()
	if s.Status().Waiting != 0 || len(s.pending) != 0 {
		t.Errorf("%+v", s.Status())
	}
	mustSync(t, s, 1)
	newShipper(t, to, filepath.Join(dir, "none"), nil).Expect()
}

// The list keeps blocks that an earlier shipper has uploaded, as long as they are on disk.
func TestShipper_ListKeepsKnownBlocksOnDisk(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	first := makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, to, dir, nil), 1)
	middle, last := makeBlock(t, dir, 1), makeBlock(t, dir, 2)
	if _, err := newShipper(t, &refusing{to, []ulid.ULID{last}}, dir, nil).Sync(context.Background()); !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	if listed, err := readState(filepath.Join(dir, "thanos.shipper.json")); err != nil || !slices.Equal(listed, []ulid.ULID{first, middle}) {
		t.Errorf("%v, %v", listed, err)
	}
	removeAll(t, filepath.Join(dir, first.String()))
	mustSync(t, newShipper(t, to, dir, nil), 1)
	if listed, err := readState(filepath.Join(dir, "thanos.shipper.json")); err != nil || !slices.Equal(listed, []ulid.ULID{middle, last}) {
		t.Errorf("%v, %v", listed, err)
	}
}

func TestShipper_FilesAreUploadedConcurrently(t *testing.T) {
	for n := 1; n <= 2; n++ {
		dir := t.TempDir()
		to := &concurrent{Bucket: objstore.NewInMemBucket(), want: n, reached: make(chan struct{})}
		makeBlock(t, dir, 0)
		mustSync(t, newShipper(t, to, dir, func(o *ShipOptions) { o.Concurrency = n }), 1)
		if fmt.Sprint(to.most) != fmt.Sprint(n) {
			t.Errorf("%d at the same time, want %d", to.most, n)
		}
	}
}

// The wrapper of a local directory checks it before each list.
func TestDirectory_ThatVanishesIsAnErrorOfEveryList(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	d, err := newDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := func() error {
		return d.IterWithAttributes(context.Background(), "", func(objstore.IterObjectAttributes) error { return nil })
	}
	if err := list(); err != nil {
		t.Errorf("never there: %v", err)
	}
	writeFile(t, dir, "a file")
	if err := d.check(); !errors.Is(err, ErrDirectoryLost) || d.device != "" {
		t.Errorf("a file: %v", err)
	}
	removeAll(t, dir)
	mkdir(t, dir)
	if err := list(); err != nil || d.device == "" {
		t.Errorf("empty: %v", err)
	}
	d.device = "of another file system"
	if err := list(); !errors.Is(err, ErrDirectoryLost) || !strings.Contains(err.Error(), dir) {
		t.Errorf("empty and of another file system: %v", err)
	}
	if names := openBelow(t, dir); len(names) > 0 {
		t.Errorf("open: %q", names)
	}
	writeFile(t, filepath.Join(dir, "x"), "x")
	if err := list(); err != nil || d.device == "of another file system" {
		t.Errorf("of another file system, not empty: %v", err)
	}
	removeAll(t, dir)
	if err := list(); !errors.Is(err, ErrDirectoryLost) || !strings.Contains(err.Error(), dir) {
		t.Errorf("gone: %v", err)
	}
}
