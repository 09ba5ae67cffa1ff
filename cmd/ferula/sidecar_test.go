package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

func sidecarOptions(t *testing.T, args ...string) (app.SidecarOptions, error) {
	t.Helper()
	cli, err := parse(t, append([]string{"sidecar"}, args...)...)
	if err != nil {
		return app.SidecarOptions{}, err
	}
	return cli.Sidecar.options()
}

// The arguments of a sidecar deployed by prometheus-operator, for a Prometheus with TLS,
// a log format and object storage. Kubernetes inserts the bucket's YAML.
func TestSidecarCommand_AcceptsPrometheusOperatorArguments(t *testing.T) {
	const bucket = "type: S3\nconfig:\n  bucket: thanos\n  endpoint: minio.svc:9000\n"
	o, err := sidecarOptions(t,
		"--prometheus.url=https://localhost:9090/",
		`--prometheus.http-client={"tls_config": {"insecure_skip_verify":true}}`,
		"--grpc-address=:10901",
		"--http-address=:10902",
		"--grpc-server-tls-cert=/etc/tls/grpc/server.crt",
		"--grpc-server-tls-key=/etc/tls/grpc/server.key",
		"--grpc-server-tls-client-ca=/etc/tls/grpc/ca.crt",
		"--http.config=/etc/thanos/web_config/web-config.yaml",
		"--objstore.config="+bucket,
		"--tsdb.path=/prometheus",
		"--min-time=-6h",
		"--prometheus.ready_timeout=20m",
		"--prometheus.get_config_interval=1m30s",
		"--prometheus.get_config_timeout=10s",
		"--tracing.config-file=",
		"--log.level=debug",
		"--log.format=json",
	)
	if err != nil {
		t.Fatal(err)
	}
	if o.PrometheusURL != "https://localhost:9090/" || o.Web.ListenAddress != ":10902" || o.GRPC.ListenAddress != ":10901" || o.TSDBDir != "/prometheus" || o.Ship.Bucket != bucket || o.GRPC.TLS.ClientCA != "/etc/tls/grpc/ca.crt" {
		t.Errorf("%+v", o)
	}
	if !strings.Contains(o.HTTPClient, "insecure_skip_verify") || o.ReadyTimeout != 20*time.Minute || o.PollInterval != 90*time.Second {
		t.Errorf("%+v", o)
	}
	if ago := time.Since(time.UnixMilli(o.MinTimeMS())); ago < 6*time.Hour || ago > 6*time.Hour+time.Minute {
		t.Errorf("the minimum time is %s ago", ago)
	}
}

func TestSidecarCommand_DefaultsOfThanosOnLoopback(t *testing.T) {
	o, err := sidecarOptions(t)
	if err != nil {
		t.Fatal(err)
	}
	if o.PrometheusURL != "http://127.0.0.1:9090" || o.Web.ListenAddress != "127.0.0.1:10902" || o.GRPC.ListenAddress != "127.0.0.1:10901" || o.Ship.Bucket != "" || o.Ship.Shipper.StateFile != "thanos.shipper.json" {
		t.Errorf("%+v", o)
	}
	if first := time.UnixMilli(o.MinTimeMS()).UTC(); first.Year() != 0 {
		t.Errorf("the minimum time is %s", first)
	}
}

func TestSidecarCommand_ObjectStorageConfigExpandsEnvironment(t *testing.T) {
	t.Setenv("FERULA_TEST_KEY", "k1")
	o, err := sidecarOptions(t, "--objstore.config={type: S3, config: {access_key: $(FERULA_TEST_KEY)}}", "--hash-func=SHA256", "--shipper.upload-concurrency=4", "--shipper.upload-compacted")
	if err != nil || o.Ship.Bucket != "{type: S3, config: {access_key: k1}}" || !o.Ship.Shipper.Hashes || !o.Ship.Shipper.UploadCompacted || o.Ship.Shipper.Concurrency != 4 {
		t.Errorf("%+v, %v", o.Ship, err)
	}
}

func TestSidecarCommand_UnsupportedFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--reloader.method=signal"}, {"--reloader.process-name=prom"}, {"--objstore.config-file=/nowhere"}, {"--objstore.config=$(FERULA_TEST_UNSET_1)"},
		{"--objstore.config=x", "--objstore.config-file=y"}, {"--min-time=soon"}, {"--hash-func=MD5"}, {"--grpc-address=nowhere"}, {"--nonsense"}, {"--log.format=journald"},
		{"--prometheus.http-client-file=/nowhere"}, {"--store.limits.request-series=many"},
	} {
		if _, err := sidecarOptions(t, args...); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
