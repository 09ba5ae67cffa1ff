package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// oldAndNew writes a block that is 40 days old and one that is one day old.
func oldAndNew(t *testing.T, dir string) (old, recent string) {
	t.Helper()
	const blocksADay = 12
	return writeBlock(t, dir, 40*blocksADay, labels.FromStrings("__name__", "old")), writeBlock(t, dir, blocksADay, labels.FromStrings("__name__", "recent"))
}

func blockExists(t *testing.T, dir, block string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, block, "meta.json"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// The TSDB deletes blocks when it opens, so it must get the retention of the file before
// it opens.
func TestServe_StartDeletesOnlyBlocksOutsideTheRetention(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file  string
		flags tsdb.Options
		stays bool
		text  string // storageRetention of /api/v1/status/runtimeinfo
	}{
		"time in the file":                {file: "storage: {tsdb: {retention: {time: 1y}}}", stays: true, text: "1y"},
		"size alone in the file":          {file: "storage: {tsdb: {retention: {size: 1GB}}}", stays: true, text: "1GiB"},
		"percentage alone in the file":    {file: "storage: {tsdb: {retention: {percentage: 99.5}}}", stays: true, text: "99.5%"},
		"no limit in the file":            {file: "storage: {tsdb: {retention: {time: 0s}}}", stays: true},
		"an empty section is no limit":    {file: "storage: {tsdb: {retention: {}}}", stays: true},
		"small size flag, file is larger": {file: "storage: {tsdb: {retention: {size: 1GB}}}", flags: tsdb.Options{RetentionBytes: 1}, stays: true, text: "1GiB"},
		"short flag, file is longer":      {file: "storage: {tsdb: {retention: {time: 1y}}}", flags: tsdb.Options{Retention: 24 * time.Hour}, stays: true, text: "1y"},
		"long flag, no section":           {file: "storage: {tsdb: {out_of_order_time_window: 5m}}", flags: tsdb.Options{Retention: 90 * 24 * time.Hour}, stays: true, text: "90d"},
		"size flag, no section":           {file: "", flags: tsdb.Options{RetentionBytes: 1 << 30}, stays: true, text: "1GiB"},
		"a null section is the default":   {file: "storage: {tsdb: {retention: }}", stays: false, text: "15d"},
		"no flag, no section":             {file: "", stays: false, text: "15d"},
		"long flag, file is shorter":      {file: "storage: {tsdb: {retention: {time: 7d}}}", flags: tsdb.Options{Retention: 365 * 24 * time.Hour}, stays: false, text: "1w"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			old, recent := oldAndNew(t, dir)
			file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n"+tt.file+"\n")
			change := func(o *app.ServeOptions) {
				o.ConfigFile, o.Web.EnableLifecycle = file, true
				o.Store = tt.flags
				o.Store.Dir = dir
			}
			check := func(when string) {
				if !blockExists(t, dir, recent) {
					t.Errorf("%s: the recent block was deleted", when)
				}
				if got := blockExists(t, dir, old); got != tt.stays {
					t.Errorf("%s: the old block exists: %t, want %t", when, got, tt.stays)
				}
			}
			for _, when := range []string{"first start", "second start"} {
				s := startServe(t, change)
				check(when)
				_, info := s.get("/api/v1/status/runtimeinfo")
				if !strings.Contains(info, `"storageRetention":"`+tt.text+`"`) {
					t.Errorf("want a retention of %q in %s", tt.text, info)
				}
				if status, body := s.post("/-/reload", "", ""); status != http.StatusOK {
					t.Errorf("reload: %d %s", status, body)
				}
				_, after := s.get("/api/v1/status/runtimeinfo")
				if !strings.Contains(after, `"storageRetention":"`+tt.text+`"`) {
					t.Errorf("after a reload: want a retention of %q in %s", tt.text, after)
				}
				check("after a reload")
				if err := s.stop(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestServe_PrometheusFolderKeepsItsBlocks(t *testing.T) {
	program, dir := binary(t), t.TempDir()
	old, recent := oldAndNew(t, dir)
	for _, folder := range []string{"wal", "chunks_head"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, "queries.active"), strings.Repeat("\x00", 20001))
	writeFile(t, filepath.Join(dir, "lock"), "")
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), `
global: {scrape_interval: 15s, external_labels: {cluster: eu}}
alerting: {alertmanagers: [{static_configs: [{targets: ['127.0.0.1:1']}]}]}
rule_files: [rules.yml]
scrape_configs: [{job_name: none, static_configs: [{targets: ['127.0.0.1:1']}]}]
storage: {tsdb: {retention: {time: 1y, size: 10GB}, out_of_order_time_window: 30m}, exemplars: {max_exemplars: 1000}}
`)
	for range 2 {
		p := startProcess(t, program, "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+dir, "--config.file="+file)
		if !blockExists(t, dir, old) || !blockExists(t, dir, recent) {
			t.Errorf("a block was deleted:\n%s", p.log)
		}
		_, metrics := p.get("/metrics")
		for _, want := range []string{"prometheus_tsdb_retention_limit_seconds 3.1536e+07", "prometheus_tsdb_retention_limit_bytes 1.073741824e+10", "prometheus_tsdb_exemplar_max_exemplars 1000"} {
			if !strings.Contains(metrics, want+"\n") {
				t.Errorf("%q is not among the metrics", want)
			}
		}
		if err := p.signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
}

// The default of --storage.tsdb.max-block-duration is a tenth of the retention. Shipping
// refuses a duration that compacts blocks, and its error names the duration.
func TestServe_MaxBlockDurationFollowsTheRetentionOfTheFile(t *testing.T) {
	bucket := "type: FILESYSTEM\nconfig: {directory: " + t.TempDir() + "}\n"
	for retention, want := range map[string]string{"20h": "", "3d": "7h12m0s", "1y": "744h0m0s", "0s": "744h0m0s"} {
		file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
			"global: {external_labels: {cluster: eu}}\nstorage: {tsdb: {retention: {time: "+retention+"}}}\n")
		options := func(o *app.ServeOptions) { o.ConfigFile, o.Ship.Bucket = file, bucket }
		if want == "" {
			_ = startServe(t, options).stop()
			continue
		}
		if err := newServe(t, options); err == nil || !strings.Contains(err.Error(), "--storage.tsdb.max-block-duration="+want+" ") {
			t.Errorf("a retention of %s: got %v, want blocks of %s", retention, err, want)
		}
	}
}

func TestServe_InvalidRetentionIsRefusedAtStart(t *testing.T) {
	for text, want := range map[string]string{
		"{percentage: 101}": "must be in the range [0, 100]",
		"{size: -1GB}":      "retention.size",
		"{time: -1d}":       "duration",
		"{time: 300000y}":   "duration",
	} {
		file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "storage: {tsdb: {retention: "+text+"}}\n")
		if err := newServe(t, func(o *app.ServeOptions) { o.ConfigFile = file }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
