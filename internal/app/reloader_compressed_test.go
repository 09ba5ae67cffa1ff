package app

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReloader_CompressedConfigurationAboveTheLimitIsRefused(t *testing.T) {
	for extra, want := range []string{"", "more than 67108864 bytes"} {
		var zipped bytes.Buffer
		w, err := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("#"), reloadFileBytesMax+extra)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		r := reloader{opts: ReloadOptions{ConfigFile: filepath.Join(dir, "prometheus.yml.gz"), OutputFile: filepath.Join(dir, "out.yml")}}
		if err := os.WriteFile(r.opts.ConfigFile, zipped.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		err = r.config(sha256.New())
		out, readErr := os.ReadFile(r.opts.OutputFile)
		if want == "" {
			if err != nil || len(out) != reloadFileBytesMax {
				t.Errorf("at the limit: %v, %d bytes", err, len(out))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), r.opts.ConfigFile) || readErr == nil {
			t.Errorf("above the limit: %v, %d bytes were written", err, len(out))
		}
	}
}
