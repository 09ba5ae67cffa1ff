package main

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every error is one line that names the flag and the value.
func TestParseArgs_ErrorsNameTheFlagAndTheValue(t *testing.T) {
	for args, want := range map[string][]string{
		"serve --query.timeout=soon":                                 {"--query.timeout", `"soon"`},
		"serve --web.max-connections=x":                              {"--web.max-connections", `"x"`},
		"serve --query.max-samples=1.5":                              {"--query.max-samples", `"1.5"`},
		"serve --query.max-samples=1e300":                            {"--query.max-samples", `"1e300"`},
		"serve --log.level=loud":                                     {"--log.level", `"loud"`, "debug"},
		"serve --log.format=xml":                                     {"--log.format", `"xml"`, "logfmt"},
		"serve --storage.tsdb.retention.size=12":                     {"--storage.tsdb.retention.size", `"12"`, "512MB"},
		"serve --web.enable-lifecycle=maybe":                         {"--web.enable-lifecycle", `"maybe"`},
		"serve --query.timeout":                                      {"--query.timeout", "a value is missing"},
		"serve --auto-gomemlimit.ratio=NaN":                          {"--auto-gomemlimit.ratio", "NaN"},
		"serve --nonsense":                                           {"--nonsense"},
		"serve extra":                                                {"extra"},
		"query --objstore.config=a":                                  {"--objstore.config"},
		"query --auto-gomemlimit.ratio=3":                            {"--auto-gomemlimit.ratio=3"},
		"query --store.response-timeout=-1s":                         {"--store.response-timeout", `"-1s"`},
		"sidecar --objstore.config=a --objstore.config-file=b":       {"--objstore.config", "--objstore.config-file"},
		"serve --query.max-concurrency=-5":                           {"--query.max-concurrency", `"-5"`, "negative"},
		"serve --web.max-connections=-1":                             {"--web.max-connections", `"-1"`, "negative"},
		"serve --profiles.limit.series=-1e3":                         {"--profiles.limit.series", `"-1e3"`, "negative"},
		"query --grpc-client-tls-min-version=9":                      {"--grpc-client-tls-min-version", `"9"`, "1.3"},
		"query-frontend --limits.max-concurrent=-1":                  {"--limits.max-concurrent", `"-1"`, "negative"},
		"sidecar --min-time=soon":                                    {"--min-time", `"soon"`},
		"sidecar --reloader.process-name=prom":                       {"--reloader.process-name"},
		"query-frontend --query-frontend.vertical-shards=many":       {"--query-frontend.vertical-shards=many"},
		"query-frontend --query-range.split-interval=forever":        {"--query-range.split-interval", `"forever"`},
		"serve --agent --storage.agent.path=x --log.level=info":      {"--agent is", "--storage.agent.path is"},
		"profiles compact --consistency-delay=1h --wait-interval=0s": {"--consistency-delay=1h", "--wait-interval=0s"},
		"profiles compact --tracing.config-file=x":                   {"--tracing.config-file are not supported"},
		"profiles compact --tracing.config=x":                        {"--tracing.config and"},
		"serve --profiles.bucket-cache-size=64TB":                    {"--profiles.bucket-cache-size=64TiB", "1TB"},
		"store --index-cache-size=64TB":                              {"--index-cache-size=64TiB", "1TB"},
		"serve --profiles.head-size=8EB":                             {"--profiles.head-size", `"8EB"`, "1EB"},
		"query --query.max-chunk-bytes=-1GB":                         {"--query.max-chunk-bytes", `"-1GB"`, "negative"},
		"query-frontend --limits.max-request-bytes-in-flight=1B":     {"--limits.max-request-bytes-in-flight=1B", "11MiB"},
		"serve --profiles.max-nodes=0 --profiles.self.interval=1ms":  {"--profiles.max-nodes=0", "--profiles.self.interval=1ms"},
		"serve --web.listen-address=127.0.0.1:99999":                 {"--web.listen-address=127.0.0.1:99999", "port"},
		"serve --web.listen-address=bogus":                           {"--web.listen-address=bogus", "port"},
		"serve --web.listen-address=:0 --web.listen-address=[::1:0":  {"--web.listen-address=[::1:0"},
		"serve --web.listen-address=127.0.0.1:0,127.0.0.1:0":         {"--web.listen-address=127.0.0.1:0,127.0.0.1:0"},
		"serve --web.listen-address=http://127.0.0.1:9490":           {"--web.listen-address=http://127.0.0.1:9490"},
		"serve --grpc-address=127.0.0.1:-1":                          {"--grpc-address=127.0.0.1:-1", "port"},
		"query --http-address=foo":                                   {"--http-address=foo", "port"},
		"query --grpc-address=127.0.0.1:http2x":                      {"--grpc-address=127.0.0.1:http2x: not host:port: unknown port"},
		"query --grpc-address=127.0.0.256:0":                         {"--grpc-address=127.0.0.256:0", "host"},
		"query-frontend --http-address=under/score:0":                {"--http-address=under/score:0", "host"},
		"sidecar --http-address=[12345::1::]:0":                      {"--http-address=[12345::1::]:0", "host"},
		"sidecar --grpc-address=nowhere":                             {"--grpc-address=nowhere", "port"},
		"store --grpc-address=":                                      {"--grpc-address=", "empty"},
		"sidecar --grpc-address=":                                    {"--grpc-address=", "empty"},
		"serve --web.listen-address=":                                {"--web.listen-address=", "empty"},
		"serve --web.listen-address=:0 --web.listen-address=":        {"--web.listen-address=", "empty"},
		"query-frontend --http-address=":                             {"--http-address=", "empty"},
		"store --http-address=localhost:65536":                       {"--http-address=localhost:65536", "port"},
		"profiles compact --http-address=..:0":                       {"--http-address=..:0", "host"},
	} {
		_, err := parse(t, strings.Fields(args)...)
		if err == nil {
			t.Errorf("%s is accepted", args)
			continue
		}
		if code := report(err, "serve"); code != 2 {
			t.Errorf("%s: exit code %d", args, code)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not contain %q", args, err, part)
			}
		}
		if text := err.Error(); strings.Contains(text, "<EOL>") || strings.HasPrefix(text, "serve:") || strings.Count(text, "\n") > 1 {
			t.Errorf("%s: %q", args, text)
		}
	}
}

// An address is not looked up before a server listens on it: only those that no machine can have are errors of the command line.
func TestParseArgs_AddressesThatAServerMayHaveAreAccepted(t *testing.T) {
	for _, args := range []string{
		"serve --web.listen-address=:9490 --web.listen-address=[::1]:0 --grpc-address=",
		"serve --web.listen-address=0.0.0.0:http --grpc-address=localhost:https",
		"serve --web.listen-address=[fe80::1%eth0]:9490 --web.listen-address=[::]:65535 --grpc-address=[127.0.0.1]:1",
		"query --http-address=prom_1.example.com.:10902 --grpc-address=",
		"query --http-address=nowhere.invalid: --grpc-address=bücher.example:0",
		"query-frontend --http-address=0123456789:0",
		"sidecar --http-address=:0 --grpc-address=:10901",
		"store --http-address=LOCALHOST:10902 --grpc-address=example:0",
		"profiles compact --http-address=10.0.0.1:10902",
	} {
		if _, err := parse(t, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestRun_AddressInUseExitsWithOne(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, args := range [][]string{
		{"serve", "--storage.tsdb.path=" + t.TempDir(), "--grpc-address=", "--web.listen-address=" + taken.Addr().String()},
		{"query", "--http-address=127.0.0.1:0", "--grpc-address=" + taken.Addr().String()},
	} {
		if code, stderr := runCaptured(t, args); code != 1 || !strings.Contains(stderr, "in use") {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
}

// Some values are checked by the role only. Prometheus ends with 2 for these, too.
func TestRun_ValueThatARoleRejectsNamesItsFlagAndExitsWithTwo(t *testing.T) {
	dir := t.TempDir()
	serve := []string{"serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--storage.tsdb.path=" + dir}
	for want, args := range map[string][]string{
		"--config.file: ":                                                    append(serve, "--config.file="+filepath.Join(dir, "none.yml")),
		"--web.cors.origin: ":                                                append(serve, "--web.cors.origin=("),
		"--storage.tsdb.wal-segment-size: ":                                  append(serve, "--storage.tsdb.wal-segment-size=1MB"),
		"--storage.tsdb.max-block-chunk-segment-size: 1 bytes ":              append(serve, "--storage.tsdb.max-block-chunk-segment-size=1B"),
		"--storage.tsdb.max-block-chunk-segment-size: 70368744177664 bytes ": append(serve, "--storage.tsdb.max-block-chunk-segment-size=64TB"),
		"--profiles.config-file: ":                                           append(serve, "--profiles.config-file="+filepath.Join(dir, "none.yml")),
		"--prometheus.url: ":                                                 {"sidecar", "--prometheus.url=localhost:9090"},
		"--tracing.config: ":                                                 {"query", "--tracing.config=type: NONSENSE"},
		"--selector.relabel-config: ":                                        {"query", "--selector.relabel-config=[{action: labelmap, regex: a}]"},
		"--objstore.config: ":                                                {"store", "--objstore.config=type: NONSENSE"},
		"--web.config.file: ":                                                append(serve, "--web.config.file="+filepath.Join(dir, "none.yml")),
		"--http.config: ":                                                    {"query", "--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--http.config=" + filepath.Join(dir, "none.yml")},
		"--query-range.split-interval: ":                                     {"query-frontend", "--query-range.split-interval=0s", "--query-range.response-cache-config=type: IN-MEMORY"},
	} {
		code, stderr := runCaptured(t, args)
		if code != exitUsage || !strings.Contains(stderr, "ferula: error: "+want) {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
}

func TestRun_HintNamesTheWholeCommand(t *testing.T) {
	code, stderr := runCaptured(t, []string{"profiles", "compact", "--wait-interval=0s"})
	if code != exitUsage || !strings.Contains(stderr, "ferula: error: --wait-interval=0s must") || !strings.Contains(stderr, `"ferula profiles compact --help"`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// runCaptured runs a command line and returns its exit code and what it wrote to standard error.
func runCaptured(t *testing.T, args []string) (int, string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func(before *os.File) { os.Stderr = before }(os.Stderr)
	os.Stderr = file
	code := run(append([]string{"ferula"}, args...))
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

// Prometheus and Thanos parse numbers as floats, levels in any case (Prometheus), and some
// durations in Go's format (Thanos).
func TestParseArgs_ValuesAsThePeersAcceptThem(t *testing.T) {
	cli, err := parse(t, "serve", "--query.max-samples=5e7", "--storage.remote.read-sample-limit=1e3", "--web.max-connections=0x10", "--log.level=WARN", "--no-web.enable-lifecycle", "--no-storage.tsdb.no-lockfile", "--no-storage.tsdb.wal-compression")
	if err != nil {
		t.Fatal(err)
	}
	o, err := cli.Serve.options()
	if err != nil || o.Query.MaxSamples != 50_000_000 || o.Read.SamplesMax != 1000 || o.Web.MaxConnections != 16 || cli.Serve.Log.Level != "warn" || o.Store.WALCompression != "none" {
		t.Errorf("%+v %v", o, err)
	}
	cli, err = parse(t, "query-frontend", "--query-range.max-retries-per-request=-1")
	if err != nil {
		t.Fatal(err)
	}
	if o, err := cli.QueryFrontend.options(); err != nil || o.Downstream.Retries != -1 {
		t.Errorf("%+v %v", o.Downstream, err)
	}
	cli, err = parse(t, "query", "--store.response-timeout=1d", "--query.timeout=1.5m")
	if err != nil {
		t.Fatal(err)
	}
	if o, err := cli.Query.options(); err != nil || o.Fanout.ResponseTimeout != 24*time.Hour || o.Query.Timeout != 90*time.Second {
		t.Errorf("%+v %v", o, err)
	}
}

func TestHelp_EveryFlagHasATextAndEveryTextAFlag(t *testing.T) {
	unused := helpTexts()
	for _, command := range parserOf(t, &commands{}).Model.Leaves(false) {
		for _, f := range command.Flags {
			if f.Help == "" || strings.Contains(f.Help, "${") || strings.TrimSpace(f.Help) != f.Help {
				t.Errorf("%s --%s: %q", command.Path(), f.Name, f.Help)
			}
			delete(unused, f.Name)
			delete(unused, command.Path()+" "+f.Name)
		}
	}
	if len(unused) > 0 {
		t.Errorf("of no flag: %q", slices.Sorted(maps.Keys(unused)))
	}
}
