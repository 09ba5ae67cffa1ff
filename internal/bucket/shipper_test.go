package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/filesystem"
)

func mustSync(t *testing.T, s *Shipper, want int) {
	t.Helper()
	if n, err := s.Sync(context.Background()); err != nil || n != want {
		t.Fatalf("%d blocks uploaded, %v; want %d", n, err, want)
	}
}

func TestShipper_ShipsABlockOnceWithTheThanosSection(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	id := makeBlock(t, dir, 0)
	s := newShipper(t, to, dir, func(o *ShipOptions) { o.Hashes = true })
	mustSync(t, s, 1)
	if got := trusted(t, to, dir); len(got) != 1 || got[0] != id {
		t.Fatalf("%v", got)
	}
	if got, want := names(objects(t, to)), id.String()+"/chunks/000001 "+id.String()+"/index "+id.String()+"/meta.json"; got != want {
		t.Errorf("the bucket has %s, want %s", got, want)
	}
	var meta struct {
		ULID   string
		Stats  struct{ NumSamples int }
		Thanos struct {
			Version      int
			Labels       map[string]string
			Source       string
			SegmentFiles []string `json:"segment_files"`
			Files        []struct {
				RelPath string `json:"rel_path"`
				Hash    struct{ HashFunc, Value string }
			}
			UploadTime time.Time `json:"upload_time"`
		}
	}
	if err := json.Unmarshal(objects(t, to)[id.String()+"/meta.json"], &meta); err != nil {
		t.Fatal(err)
	}
	th := meta.Thanos
	if meta.ULID != id.String() || meta.Stats.NumSamples != 5*120 || th.Version != 1 || th.Labels["replica"] != "<0>" || th.Source != "sidecar" || th.UploadTime.IsZero() {
		t.Errorf("%+v", meta)
	}
	if len(th.SegmentFiles) != 1 || th.SegmentFiles[0] != "000001" || len(th.Files) != 3 || th.Files[0].RelPath != "chunks/000001" || th.Files[2].RelPath != "meta.json" || len(th.Files[1].Hash.Value) != 64 || th.Files[1].Hash.HashFunc != "SHA256" {
		t.Errorf("%+v", th)
	}
	mustSync(t, s, 0)
	requests := never(to)
	mustSync(t, newShipper(t, requests, dir, nil), 0)
	if requests.done != 0 {
		t.Errorf("%d requests to the bucket for a block in the state file", requests.done)
	}
	if err := os.Remove(filepath.Join(dir, "thanos.shipper.json")); err != nil {
		t.Fatal(err)
	}
	mustSync(t, newShipper(t, to, dir, nil), 0)
	if text, err := os.ReadFile(filepath.Join(dir, "thanos.shipper.json")); err != nil || !strings.Contains(string(text), id.String()) {
		t.Errorf("%s, %v", text, err)
	}
}

// The program is killed at each step of an upload, with nothing or half of an object
// written, and restarted.
func TestShipper_UploadKilledAtAnyStepIsRepeated(t *testing.T) {
	for _, half := range []bool{false, true} {
		for step := 1; ; step++ {
			dir, to := t.TempDir(), objstore.NewInMemBucket()
			first, second := makeBlock(t, dir, 0), makeBlock(t, dir, 1)
			dying := &faulty{Bucket: to, at: step, half: half}
			_, err := newShipper(t, dying, dir, nil).Sync(context.Background())
			if err == nil {
				if step < 10 {
					t.Fatalf("an upload of two blocks has only %d steps", step)
				}
				break
			}
			if !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			trusted(t, to, dir) // blocks that a reader would serve are complete
			mustBeWhole := func() {
				t.Helper()
				if got := trusted(t, to, dir); len(got) != 2 || len(objects(t, to)) != 6 {
					t.Fatalf("killed at step %d, repeated: %v trusted, objects %s", step, got, names(objects(t, to)))
				}
			}
			if step%2 == 0 { // the state file may be lost as well
				_ = os.Remove(filepath.Join(dir, "thanos.shipper.json"))
			}
			if _, err := newShipper(t, to, dir, nil).Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			mustBeWhole()
			_, _ = first, second
		}
	}
}

func TestShipper_RunRetriesAfterAFault(t *testing.T) {
	for step := 1; step < 12; step++ {
		dir, to := t.TempDir(), objstore.NewInMemBucket()
		makeBlock(t, dir, 0)
		s := newShipper(t, &faulty{Bucket: to, at: step, half: true, once: true}, dir, nil)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		for deadline := time.Now().Add(30 * time.Second); s.Status().LastSuccess.IsZero() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
		stop()
		<-done
		if got := trusted(t, to, dir); len(got) != 1 || s.Status().Waiting != 0 {
			t.Errorf("fault at step %d: %v, %+v", step, got, s.Status())
		}
	}
}

// sick is a bucket that refuses uploads until it is repaired.
type sick struct {
	objstore.Bucket
	err error
}

func (s *sick) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if errors.Is(s.err, context.DeadlineExceeded) { // it hangs
		<-ctx.Done()
		return ctx.Err()
	}
	if s.err != nil {
		return s.err
	}
	return s.Bucket.Upload(ctx, name, r, o...)
}

func TestShipper_FullReadOnlyOrHangingBucketLosesNothing(t *testing.T) {
	for what, fault := range map[string]error{"full": errors.New("507 Insufficient Storage"), "read-only": errors.New("access denied"), "hangs": context.DeadlineExceeded} {
		dir, to := t.TempDir(), objstore.NewInMemBucket()
		makeBlock(t, dir, 0)
		makeBlock(t, dir, 1)
		ill := &sick{to, fault}
		s := newShipper(t, ill, dir, func(o *ShipOptions) { o.Stall = 500 * time.Millisecond })
		_, err := s.Sync(context.Background())
		if err == nil || what == "hangs" != errors.Is(err, errStalled) {
			t.Errorf("%s: %v", what, err)
		}
		if status := s.Status(); status.Waiting != 2 || status.FailingFrom.IsZero() || status.Err == nil || len(objects(t, to)) != 0 {
			t.Errorf("%s: %+v, objects %s", what, status, names(objects(t, to)))
		}
		ill.err = nil
		mustSync(t, s, 2)
		if status := s.Status(); status.Waiting != 0 || !status.FailingFrom.IsZero() || len(trusted(t, to, dir)) != 2 {
			t.Errorf("%s, healed: %+v", what, status)
		}
	}
}

func TestShipper_ReplacesABrokenBlockInTheBucket(t *testing.T) {
	dir := t.TempDir()
	to, err := filesystem.NewBucket(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	id := makeBlock(t, dir, 0)
	ship := func() { t.Helper(); mustSync(t, newShipper(t, to, dir, nil), 1) }
	ship()
	for _, object := range []string{"meta.json", "index", "chunks/000001"} {
		for _, broken := range []string{"cut", "gone"} {
			if err := os.Remove(filepath.Join(dir, "thanos.shipper.json")); err != nil {
				t.Fatal(err)
			}
			name := id.String() + "/" + object
			text := objects(t, to)[name]
			if err := to.Delete(context.Background(), name); err != nil {
				t.Fatal(err)
			}
			if broken == "cut" {
				if err := to.Upload(context.Background(), name, strings.NewReader(string(text[:len(text)-9]))); err != nil {
					t.Fatal(err)
				}
			}
			ship()
			if got := trusted(t, to, dir); len(got) != 1 {
				t.Errorf("%s %s: %v", object, broken, got)
			}
		}
	}
}

func TestShipper_BlockMarkedForDeletionIsNotShippedAgain(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	id := makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, to, dir, nil), 1)
	_ = os.Remove(filepath.Join(dir, "thanos.shipper.json"))
	if err := errors.Join(to.Upload(context.Background(), id.String()+"/deletion-mark.json", strings.NewReader("{}")), to.Delete(context.Background(), id.String()+"/index")); err != nil {
		t.Fatal(err)
	}
	mustSync(t, newShipper(t, to, dir, nil), 0)
}

// setLevel rewrites a block's meta.json.
func setLevel(t *testing.T, dir string, id ulid.ULID, from, to string) {
	t.Helper()
	path := filepath.Join(dir, id.String(), metaFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), from, to, 1)
	if changed == string(text) {
		t.Fatalf("%s has no %s", text, from)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestShipper_UploadCompactedShipsUnlessBlocksOverlap(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	id := makeBlock(t, dir, 0)
	setLevel(t, dir, id, `"level": 1`, `"level": 2`)
	mustSync(t, newShipper(t, to, dir, nil), 0)
	compacted := func(o *ShipOptions) { o.UploadCompacted = true }
	mustSync(t, newShipper(t, to, dir, compacted), 1)
	again := makeBlock(t, dir, 0)
	setLevel(t, dir, again, `"level": 1`, `"level": 3`)
	if _, err := newShipper(t, to, dir, compacted).Sync(context.Background()); !errors.Is(err, ErrOverlap) {
		t.Errorf("%v", err)
	}
	other := func(o *ShipOptions) {
		o.UploadCompacted = true
		o.Labels = func() labels.Labels { return labels.FromStrings("another", "server") }
	}
	mustSync(t, newShipper(t, to, dir, other), 1)
}

func TestShipper_WithoutExternalLabelsShipsNothing(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	s := newShipper(t, to, dir, func(o *ShipOptions) { o.Labels = labels.EmptyLabels })
	if _, err := s.Sync(context.Background()); !errors.Is(err, ErrNoLabels) || len(objects(t, to)) != 0 {
		t.Errorf("%v, %s", err, names(objects(t, to)))
	}
}

func TestShipper_UnreadableBlockStopsLaterOnesByDefault(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 1)
	broken := makeBlock(t, dir, 0)
	setLevel(t, dir, broken, `"version"`, `"version`)
	if _, err := newShipper(t, to, dir, nil).Sync(context.Background()); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), broken.String()) || len(objects(t, to)) != 0 {
		t.Errorf("%v", err)
	}
	s := newShipper(t, to, dir, func(o *ShipOptions) { o.SkipCorrupted = true })
	if n, err := s.Sync(context.Background()); n != 1 || !errors.Is(err, ErrCorrupt) || len(trusted(t, to, dir)) != 1 {
		t.Errorf("%d, %v", n, err)
	}
}

// deleting deletes the block from disk once its upload has begun.
type deleting struct {
	objstore.Bucket
	dir string
}

func (d *deleting) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if err := os.RemoveAll(d.dir); err != nil {
		return err
	}
	return d.Bucket.Upload(ctx, name, r, o...)
}

func TestShipper_BlockDeletedDuringUploadIsShippedCompletely(t *testing.T) {
	dir, kept, to := t.TempDir(), t.TempDir(), objstore.NewInMemBucket()
	id := makeBlock(t, dir, 0)
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	mustSync(t, newShipper(t, &deleting{to, filepath.Join(dir, id.String())}, dir, nil), 1)
	if got := trusted(t, to, kept); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestShipper_ReadOnlyDirectoryStillShips(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	if err := os.Mkdir(filepath.Join(dir, "thanos.shipper.json.tmp"), 0o700); err != nil { // the state file cannot be written
		t.Fatal(err)
	}
	s := newShipper(t, to, dir, nil)
	mustSync(t, s, 1)
	mustSync(t, s, 0)
}
