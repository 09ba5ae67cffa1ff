package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// argsOf returns the arguments in a file of testdata/args: one per line, or the ExecStart
// of a unit with its ARGS.
func argsOf(t *testing.T, name string) (args []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/args/" + name)
	if err != nil {
		t.Fatal(err)
	}
	inUnit := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if variable, ok := strings.CutPrefix(line, `Environment="ARGS=`); ok {
			inUnit = strings.TrimSuffix(variable, `"`)
		}
		if start, ok := strings.CutPrefix(line, "ExecStart="); ok {
			return strings.Fields(strings.Replace(start, "$ARGS", inUnit, 1))[1:]
		}
		if strings.HasPrefix(line, "--") {
			args = append(args, line)
		}
	}
	return args
}

func serveOptionsOf(t *testing.T, name string) app.ServeOptions {
	t.Helper()
	args := argsOf(t, name)
	if len(args) < 9 {
		t.Fatalf("%s has only %q", name, args)
	}
	cli, err := parse(t, append([]string{"serve"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	o, err := cli.Serve.options()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestServeCommand_AcceptsADebianUnit(t *testing.T) {
	o := serveOptionsOf(t, "debian.service")
	if o.ConfigFile != "/etc/prometheus/prometheus.yml" || o.Store.Dir != "/var/lib/prometheus/metrics2/" || o.Web.ListenAddress != "127.0.0.1:0" || !slices.Equal(o.Web.MoreAddresses, []string{"[::1]:0"}) {
		t.Errorf("%+v", o.Web)
	}
	if o.Store.Retention != 30*24*time.Hour || o.Store.RetentionBytes != 20<<30 || !o.Web.EnableLifecycle || o.Query.MaxSamples != 50_000_000 {
		t.Errorf("%+v %+v", o.Store, o.Query)
	}
	names := ignoredNames(t, append([]string{"serve"}, argsOf(t, "debian.service")...)...)
	want := []string{"web.console.templates", "web.console.libraries", "web.user-assets", "enable-feature=auto-gomaxprocs"}
	if !slices.Equal(names, want) {
		t.Errorf("ignored are %q", names)
	}
}

func TestServeCommand_AcceptsPrometheusOperatorArguments(t *testing.T) {
	o := serveOptionsOf(t, "prometheus-operator.txt")
	if o.Web.ExternalURL != "https://monitoring.example.com/prometheus" || o.Web.RoutePrefix != "/" || o.Web.MaxConnections != 1024 || o.Web.ConfigFile != "/etc/prometheus/web_config/web-config.yaml" {
		t.Errorf("%+v", o.Web)
	}
	if s := o.Store; s.MinBlockDuration != 2*time.Hour || s.MaxBlockDuration != 2*time.Hour || !s.NoLockfile || !s.KeepOverlappingBlocks || s.UploadedBlocksFile != "/prometheus/thanos.shipper.json" || !s.SnapshotOnShutdown || s.WALCompression != "snappy" {
		t.Errorf("%+v", s)
	}
	if !o.Rules.ConcurrentEvals || o.Rules.MaxConcurrentEvals == 0 {
		t.Errorf("%+v", o.Rules)
	}
	if o.Query.LookbackDelta != 2*time.Minute || o.Query.MaxConcurrency != 40 || o.Scrape.TimestampTolerance != 10*time.Millisecond || o.Receive.RemoteWriteOff || len(o.Write.Messages) != 2 {
		t.Errorf("%+v %+v %+v", o.Query, o.Scrape, o.Receive)
	}
}

func TestServeCommand_AcceptsKubePrometheusArguments(t *testing.T) {
	o := serveOptionsOf(t, "kube-prometheus.txt")
	if o.Store.Retention != 24*time.Hour || o.Store.Dir != "/prometheus" || !o.Web.EnableLifecycle {
		t.Errorf("%+v", o)
	}
}

func TestServeCommand_ReceiversAreSwitchedByTheirFlags(t *testing.T) {
	for arg, want := range map[string]bool{"--web.enable-remote-write-receiver": false, "--no-web.enable-remote-write-receiver": true, "--web.enable-lifecycle": false} {
		cli, err := parse(t, "serve", arg)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := cli.Serve.options(); err != nil || o.Receive.RemoteWriteOff != want {
			t.Errorf("%s: the receiver is off: %v, %v", arg, o.Receive.RemoteWriteOff, err)
		}
	}
	if err := optionsOf(t, "serve", "--no-web.enable-otlp-receiver"); err != nil {
		t.Error(err)
	}
	for arg, want := range map[string]bool{"--web.enable-otlp-receiver": true, "--no-web.enable-otlp-receiver": false, "--web.enable-lifecycle": false} {
		cli, err := parse(t, "serve", arg)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := cli.Serve.options(); err != nil || o.Peer.OTLP != want {
			t.Errorf("%s: the OTLP receiver is on: %v, %v", arg, o.Peer.OTLP, err)
		}
	}
	if err := optionsOf(t, "serve", "--web.remote-write-receiver.accepted-protobuf-messages=v3"); err == nil || !strings.Contains(err.Error(), "--web.remote-write-receiver.accepted-protobuf-messages") {
		t.Error(err)
	}
}

// The arguments of Debian's unit file and of the pods that prometheus-operator creates for
// kube-prometheus.
func TestServeCommand_ArgumentsOfDeploymentsAreAccepted(t *testing.T) {
	for name, args := range map[string][]string{
		"Debian": {
			"--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/var/lib/prometheus/metrics2/",
			"--web.console.libraries=/usr/share/prometheus/console_libraries", "--web.console.templates=/usr/share/prometheus/consoles",
			"--storage.tsdb.retention.time=15d", "--web.enable-admin-api", "--log.level=info",
		},
		"prometheus-operator": {
			"--config.file=/etc/prometheus/config_out/prometheus.env.yaml", "--web.enable-lifecycle", "--web.external-url=http://prometheus-k8s.monitoring:9090",
			"--web.route-prefix=/", "--storage.tsdb.retention.time=24h", "--storage.tsdb.path=/prometheus", "--web.config.file=/etc/prometheus/web_config/web-config.yaml",
			"--web.console.templates=/etc/prometheus/consoles", "--web.console.libraries=/etc/prometheus/console_libraries", "--web.listen-address=0.0.0.0:9090",
			"--web.listen-address=127.0.0.1:9091", "--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--log.level=debug", "--log.format=json",
			"--web.enable-remote-write-receiver", "--web.enable-otlp-receiver", "--web.page-title=k8s", "--rules.max-concurrent-evals=4", "--storage.tsdb.wal-compression",
			"--storage.tsdb.no-lockfile", "--query.max-samples=50000000", "--enable-feature=exemplar-storage,memory-snapshot-on-shutdown", "--auto-gomemlimit.ratio=0.8",
			"--storage.remote.flush-deadline=30s", "--rules.alert.resend-delay=1m",
		},
	} {
		if err := optionsOf(t, append([]string{"serve"}, args...)...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServeCommand_AgentModeIsRefusedWithTheReason(t *testing.T) {
	for _, arg := range []string{"--agent", "--storage.agent.path=data-agent"} {
		if _, err := parse(t, "serve", arg); err == nil || !strings.Contains(err.Error(), "there is no Agent mode") {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// For the options of a role 0 is the default; for these flags it means not to wait, as in the peers.
func TestServeCommand_ZeroWaitsNotAtAll(t *testing.T) {
	cli, err := parse(t, "serve", "--storage.remote.flush-deadline=0s", "--grpc-grace-period=0s")
	if err != nil {
		t.Fatal(err)
	}
	if o, err := cli.Serve.options(); err != nil || o.Send.FlushDeadline >= 0 || o.GRPC.GracePeriod >= 0 {
		t.Errorf("%s %s %v", o.Send.FlushDeadline, o.GRPC.GracePeriod, err)
	}
	if cli, err = parse(t, "query", "--http-grace-period=0s", "--grpc-grace-period=0s"); err != nil {
		t.Fatal(err)
	}
	if o, err := cli.Query.options(); err != nil || o.Web.DrainTimeout >= 0 || o.GRPC.GracePeriod >= 0 {
		t.Errorf("%s %s %v", o.Web.DrainTimeout, o.GRPC.GracePeriod, err)
	}
}
