package app

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/compact"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/metrics"
)

// profileBucket returns a bucket's configuration and directory. The bucket has n profiles of one day, each in a block.
func profileBucket(t *testing.T, n int) (config, dir string) {
	t.Helper()
	quiet, local := slog.New(slog.DiscardHandler), t.TempDir()
	dir = t.TempDir()
	config = "{type: FILESYSTEM, config: {directory: " + dir + "}}"
	s, err := store.New(store.Options{Dir: local, Retention: -1, BlockBytes: 1}, quiet, nil)
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Period("cpu", "nanoseconds", 1)
		e.Sample([]uint64{e.Location(e.Function("f", "", "", 0), 1)}, 1)
		p := profiles.RawProfile{TimeNS: 1_700_000_000_000_000_000 + int64(i), Raw: e.Append(nil)}
		binary.BigEndian.PutUint64(p.ID[:], uint64(i)+1)
		p.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", "a")
		if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{p}), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	to, err := bucket.Open([]byte(config), "test", quiet, prometheus.NewRegistry())
	if err == nil {
		_, err = bucket.NewProfileShipper(to, bucket.ShipOptions{Dir: filepath.Join(local, "profiles")}, quiet, metrics.NewSet()).Sync(t.Context())
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return config, dir
}

// filesOf counts the files of this name in a bucket's directory.
func filesOf(t *testing.T, dir, name string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "profiles", "*", "*", name))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

func compactOnce(t *testing.T, config string) error {
	t.Helper()
	c, err := NewProfilesCompact(ProfilesCompactOptions{
		Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Bucket: config, Compact: compact.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return c.Run(t.Context())
}

func TestProfilesCompact_EndsAfterOneIteration(t *testing.T) {
	config, dir := profileBucket(t, 3)
	for range 2 {
		if err := compactOnce(t, config); err != nil {
			t.Fatal(err)
		}
		if blocks, marks := filesOf(t, dir, "index"), filesOf(t, dir, "deletion-mark.json"); blocks != 4 || marks != 3 {
			t.Errorf("%d blocks, %d marks", blocks, marks)
		}
	}
}

func TestProfilesCompact_AFailureIsTheErrorOfTheOnlyIteration(t *testing.T) {
	config, dir := profileBucket(t, 1)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := compactOnce(t, config); err == nil {
		t.Error("no error")
	}
	for config, want := range map[string]string{"type: NONSENSE": "--objstore.config: ", "": "--objstore.config: "} {
		if err := compactOnce(t, config); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", config, err)
		}
	}
}

// A process that starts again in the same program, or a test, needs the directory.
func TestNewProfilesCompact_AFailureUnlocksItsDirectory(t *testing.T) {
	config, _ := profileBucket(t, 1)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	start := func(dir, address string) error {
		c, err := NewProfilesCompact(ProfilesCompactOptions{
			Web: WebOptions{ListenAddress: address}, Bucket: config, Compact: compact.Options{Dir: dir}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		if c.opts.Interval != 5*time.Minute {
			t.Errorf("the default interval is %s", c.opts.Interval)
		}
		return c.Run(t.Context())
	}
	for range 2 {
		if err := start(dir, taken.Addr().String()); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%v, want that the address is in use", err)
		}
	}
	if err := start(file, "127.0.0.1:0"); err == nil || !strings.HasPrefix(err.Error(), "--data-dir: ") {
		t.Errorf("%v, want the fault of --data-dir", err)
	}
	if err := start(dir, "127.0.0.1:0"); err != nil {
		t.Error(err)
	}
}

func TestProfilesCompact_WaitsForNewBlocks(t *testing.T) {
	config, dir := profileBucket(t, 2)
	c, err := NewProfilesCompact(ProfilesCompactOptions{
		Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Bucket: config, Compact: compact.Options{Dir: t.TempDir(), DeleteDelay: -1},
		Wait: true, Interval: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, text := httpGet(t, "http://"+c.Addr().String()+"/metrics")
		if strings.Contains(text, "\nthanos_compact_blocks_cleaned_total 2\n") && !strings.Contains(text, "\nthanos_compact_iterations_total 1\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if blocks, marks := filesOf(t, dir, "index"), filesOf(t, dir, "deletion-mark.json"); blocks != 1 || marks != 0 {
		t.Errorf("%d blocks, %d marks", blocks, marks)
	}
}
