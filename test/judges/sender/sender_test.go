// Package sender runs the official remote write suite for senders against the ferula binary of FERULA_BINARY.
package sender

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/compliance/remotewrite/sender"
)

// config scrapes as often as the suite expects, and sends each scrape on its own.
const config = `
global: {scrape_interval: 1s}
remote_write:
- {url: %q, protobuf_message: %q, send_exemplars: true, send_native_histograms: true, queue_config: {max_shards: 1}}
scrape_configs:
- job_name: %q
  scrape_protocols: [PrometheusProto, OpenMetricsText1.0.0, PrometheusText0.0.4]
  static_configs: [{targets: [%q]}]
`

type ferula struct{ dir string }

// Name implements sender.Sender.
func (ferula) Name() string { return "ferula" }

// Run implements sender.Sender.
func (f ferula) Run(ctx context.Context, o sender.Options) error {
	dir, err := os.MkdirTemp(f.dir, "serve")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "prometheus.yml")
	yaml := fmt.Sprintf(config, o.RemoteWriteEndpointURL, o.RemoteWriteMessage, o.ScrapeTargetJobName, o.ScrapeTargetHostPort)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return err
	}
	return sender.RunCommand(ctx, dir, nil, os.Getenv("FERULA_BINARY"), "serve", "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0",
		"--enable-feature=st-storage,metadata-wal-records")
}

func TestSender(t *testing.T) {
	sender.RunTests(t, ferula{dir: t.TempDir()}, sender.ComplianceTests())
}
