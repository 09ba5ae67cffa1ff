package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/tsdb"
)

var (
	quiet    = slog.New(slog.DiscardHandler)
	external = labels.FromStrings("cluster", "eu")
)

// yamlOf is the configuration of a bucket in a directory.
func yamlOf(dir string) string { return "type: FILESYSTEM\nconfig: {directory: " + dir + "}\n" }

func shipperOf(t *testing.T, bucketDir, dir string) *shipper {
	t.Helper()
	o := ShippingOptions{Bucket: yamlOf(bucketDir)}
	o.Shipper.Interval, o.Shipper.RetryMin = time.Millisecond, time.Millisecond
	s, err := newShipper(o, dir, "sidecar", func() labels.Labels { return external }, quiet, telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.AddProfiles(filepath.Join(dir, "profiles"), o, quiet, telemetry.New())
	return s
}

func TestShipper_NilDoesNothing(t *testing.T) {
	s, err := newShipper(ShippingOptions{}, t.TempDir(), "ferula", nil, quiet, telemetry.New())
	if s != nil || err != nil {
		t.Fatal(s, err)
	}
	var o store.Options
	s.AddProfiles("", ShippingOptions{}, quiet, nil)
	s.ReadProfiles(&o, ProfileCacheOptions{}, nil)
	if err := errors.Join(s.Run(context.Background()), s.Close()); err != nil || s.Note() != "" || o.Remote != nil {
		t.Error(err, s.Note(), o)
	}
}

func TestShipper_ConfigurationOfTheBucketIsChecked(t *testing.T) {
	if s, err := newShipper(ShippingOptions{Bucket: "type: SQL\n"}, t.TempDir(), "ferula", nil, quiet, telemetry.New()); s != nil || err == nil {
		t.Error(s, err)
	}
}

func TestShipper_ShipsBlocksOfBothSignals(t *testing.T) {
	to, dir := t.TempDir(), t.TempDir()
	const startMS = 1_700_006_400_000
	w, err := prometheustsdb.NewBlockWriter(quiet, dir, shippedDuration.Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	app := w.Appender(context.Background())
	_, err = app.Append(0, labels.FromStrings("__name__", "m"), startMS, 1)
	if err := errors.Join(err, app.Commit()); err != nil {
		t.Fatal(err)
	}
	block, err := w.Flush(context.Background())
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	id := ulid.Make()
	putFiles(t, filepath.Join(dir, "profiles", "team-a", id.String()), "index", "profiles.parquet")
	s := shipperOf(t, to, dir)
	if note := s.Note(); note != "Shipping has not begun.\n" {
		t.Errorf("%q", note)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	meta := filepath.Join(to, block.String(), "meta.json")
	index := filepath.Join(to, "profiles", "team-a", id.String(), "index")
	until(t, func() bool {
		return exists(meta) && exists(index) && strings.HasPrefix(s.Note(), "Shipping last succeeded at ")
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	o := store.Options{Dir: t.TempDir()}
	s.ReadProfiles(&o, ProfileCacheOptions{IndexBytes: 1000, PagesBytes: 1 << 20}, nil)
	found, err := o.Remote.Blocks(context.Background())
	if err != nil || len(found) != 1 || found[0].Tenant != "team-a" || found[0].ID != id || found[0].IndexBytes == 0 || o.RemoteIndexBytes != 1000 {
		t.Errorf("%+v, %d, %v", found, o.RemoteIndexBytes, err)
	}
	if s.ReadProfiles(&o, ProfileCacheOptions{}, nil); o.RemoteIndexBytes != 128<<20 {
		t.Error(o.RemoteIndexBytes)
	}
}

func TestShipper_NoteHasTheFailure(t *testing.T) {
	to, dir := filepath.Join(t.TempDir(), "bucket"), t.TempDir()
	putFiles(t, filepath.Join(dir, ulid.Make().String()), "meta.json") // not JSON
	s := shipperOf(t, to, dir)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	until(t, func() bool { return strings.HasPrefix(s.Note(), "Shipping has failed since ") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShippingOptions_CheckLocal(t *testing.T) {
	two, day := 2*time.Hour, 24*time.Hour
	for _, c := range []struct {
		o        ShippingOptions
		min, max time.Duration
		external labels.Labels
		want     string // within the error; "": none
	}{
		{ShippingOptions{}, two, day, labels.EmptyLabels(), ""},
		{ShippingOptions{Bucket: "b"}, two, two, external, ""},
		{ShippingOptions{Bucket: "b"}, two, day, external, "--storage.tsdb.max-block-duration=24h0m0s must both be 2h0m0s"},
		{ShippingOptions{Bucket: "b"}, time.Hour, two, external, "--storage.tsdb.min-block-duration=1h0m0s"},
		{ShippingOptions{Bucket: "b", IgnoreBlockSize: true}, two, day, external, ""},
		{ShippingOptions{Bucket: "b", IgnoreBlockSize: true}, two, day, labels.EmptyLabels(), bucket.ErrNoLabels.Error() + ": set global.external_labels"},
	} {
		err := c.o.CheckLocal(tsdb.Options{MinBlockDuration: c.min, MaxBlockDuration: c.max}, c.external)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "--objstore.config: ")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestShippingOptions_CheckPrometheus(t *testing.T) {
	const minFlag, maxFlag, delay = "storage.tsdb.min-block-duration", "storage.tsdb.max-block-duration", "storage.tsdb.delay-compact-file.path"
	named := ShippingOptions{}
	named.Shipper.StateFile = "list.json"
	for _, c := range []struct {
		o     ShippingOptions
		flags map[string]string
		want  string // within the error; "": none
	}{
		{ShippingOptions{}, map[string]string{minFlag: "2h", maxFlag: "2h"}, ""},
		{ShippingOptions{}, map[string]string{minFlag: "2h", maxFlag: "1d"}, "--storage.tsdb.max-block-duration=1d must both be 2h0m0s"},
		{ShippingOptions{IgnoreBlockSize: true}, map[string]string{minFlag: "2h", maxFlag: "1d"}, ""},
		{ShippingOptions{}, map[string]string{maxFlag: "2h"}, `its --storage.tsdb.min-block-duration is ""`},
		{ShippingOptions{}, map[string]string{maxFlag: "1d", delay: "/data/./thanos.shipper.json"}, ""},
		{named, map[string]string{maxFlag: "1d", delay: "/data/list.json"}, ""},
		{ShippingOptions{IgnoreBlockSize: true}, map[string]string{delay: "/other/thanos.shipper.json"}, "but shipped blocks are listed in /data/thanos.shipper.json"},
	} {
		err := c.o.CheckPrometheus("/data", c.flags)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// putFiles writes files that contain their names.
func putFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
