package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
)

// parseAs parses the command line of a program that was started by a name. It also returns what --version or --help print.
func parseAs(t *testing.T, path string, args ...string) (*commands, *kong.Context, string, error) {
	t.Helper()
	var cli commands
	var out bytes.Buffer
	name := nameOf(path)
	parser, err := newParser(name, &cli, kong.Exit(func(int) {}), kong.Writers(&out, &out))
	if err != nil {
		t.Fatal(err)
	}
	if peer, ok := peerPrograms[name]; ok {
		if args, err = peer.args(args); err != nil {
			return &cli, nil, "", err
		}
	}
	k, _, err := parseArgs(parser, args)
	return &cli, k, out.String(), err
}

func TestPeerProgram_PrometheusIsServeWithPrometheusDefaults(t *testing.T) {
	for path, want := range map[string][]string{
		"/bin/prometheus": {"0.0.0.0:9090"}, "prometheus.exe": {"0.0.0.0:9090"},
	} {
		cli, k, _, err := parseAs(t, path, "--web.enable-lifecycle", "--storage.tsdb.retention.time=24h")
		if err != nil || k.Command() != "serve" || !slices.Equal(cli.Serve.ListenAddress, want) {
			t.Fatalf("%s: %v: %+v", path, err, cli.Serve)
		}
		o, err := cli.Serve.options()
		if err != nil || o.ConfigFile != "prometheus.yml" || o.GRPC.ListenAddress != "" || o.Store.Dir != "data" || !o.Web.EnableLifecycle {
			t.Errorf("%s: %v: %+v", path, err, o)
		}
		// Prometheus accepts no samples and no profiles unless it is told so.
		if !o.Receive.RemoteWriteOff || !o.Receive.ProfilesOff {
			t.Errorf("%s: receivers are open: %+v", path, o.Receive)
		}
	}
	cli, _, _, err := parseAs(t, "prometheus", "--web.listen-address=127.0.0.1:1", "--web.enable-remote-write-receiver", "--grpc-address=127.0.0.1:2", "--config.file=a.yml")
	if err != nil || !slices.Equal(cli.Serve.ListenAddress, []string{"127.0.0.1:1"}) || !cli.Serve.Receive.RemoteWrite ||
		cli.Serve.GRPCAddress != "127.0.0.1:2" || cli.Serve.ConfigFile != "a.yml" {
		t.Errorf("%v: %+v", err, cli.Serve)
	}
}

func TestPeerProgram_ThanosHasFourCommandsWithItsPorts(t *testing.T) {
	for command, addresses := range map[string]func(*commands) [2]string{
		"sidecar":        func(c *commands) [2]string { return [2]string{c.Sidecar.Process.HTTPAddress, c.Sidecar.GRPCAddress} },
		"query":          func(c *commands) [2]string { return [2]string{c.Query.Process.HTTPAddress, c.Query.GRPCAddress} },
		"query-frontend": func(c *commands) [2]string { return [2]string{c.QueryFrontend.Process.HTTPAddress, "0.0.0.0:10901"} },
		"store":          func(c *commands) [2]string { return [2]string{c.Store.Process.HTTPAddress, c.Store.GRPCAddress} },
	} {
		for _, args := range [][]string{
			{command, "--log.level=debug"}, {"--log.level=debug", command}, {"--log.level", "debug", "--enable-auto-gomemlimit", command},
		} {
			cli, k, _, err := parseAs(t, "/bin/thanos", args...)
			if err != nil || k.Command() != command || addresses(cli) != [2]string{"0.0.0.0:10902", "0.0.0.0:10901"} {
				t.Errorf("%q: %v: %q", args, err, addresses(cli))
			}
		}
		cli, _, _, err := parseAs(t, "thanos", command, "--http-address=:80")
		if err != nil || addresses(cli)[0] != ":80" {
			t.Errorf("%s: %v: %q", command, err, addresses(cli))
		}
	}
}

func TestPeerProgram_WhatIsNotThereEndsWithAReason(t *testing.T) {
	for line, want := range map[string]string{
		"thanos receive --tsdb.path=x":          "thanos receive is not part of ferula: run it from Thanos' own image",
		"thanos compact":                        "thanos compact is not part of ferula",
		"thanos rule":                           "thanos rule is not",
		"thanos --log.level=debug tools bucket": "thanos tools is not",
		"thanos serve":                          "thanos serve is not",
		"thanos":                                "a command is missing: sidecar, query, query-frontend, store",
		"thanos --log.level debug":              "a command is missing",
		"thanos query --nonsense":               "--nonsense",
		"thanos query --query.mode=distributed": "--query.mode=distributed",
		"prometheus --agent":                    "no Agent mode",
		"prometheus --storage.tsdb.retention=1": "--storage.tsdb.retention",
		"prometheus query":                      "query",
	} {
		parts := strings.Fields(line)
		cli, k, _, err := parseAs(t, parts[0], parts[1:]...)
		if err == nil && k.Command() == "query" {
			_, err = cli.Query.options()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// The help of ferula serve has other defaults than that of prometheus.
func TestPeerProgram_AnErrorNamesTheHelpOfTheProgram(t *testing.T) {
	for line, want := range map[string]string{
		"prometheus --nonsense": "prometheus", "/bin/thanos query --nonsense": "thanos query", "thanos compact": "thanos",
		"ferula serve --nonsense": "ferula serve", "a.out query --nonsense": "ferula query", "ferula --nonsense": "ferula",
	} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr := os.Stderr
		os.Stderr = write
		code := run(strings.Fields(line))
		os.Stderr = stderr
		write.Close()
		text, err := io.ReadAll(read)
		if want := "\nRun \"" + want + " --help\" for the flags.\n"; err != nil || code != exitUsage || !strings.HasSuffix(string(text), want) {
			t.Errorf("%s: %d %v: %q, want %q", line, code, err, text, want)
		}
	}
}

// Scripts read the third word of the first line.
func TestPeerProgram_VersionIsInThePeersForm(t *testing.T) {
	for name, command := range map[string]string{"prometheus": "serve", "thanos": "query"} {
		_, _, out, _ := parseAs(t, name, "--version")
		want := name + ", version " + peers[command][1] + " (branch: ferula "
		if !strings.HasPrefix(out, want) || peerPrograms[name].version != peers[command][1] {
			t.Errorf("%q, want %q", out, want)
		}
	}
	if _, _, out, _ := parseAs(t, "ferula", "--version"); !strings.HasPrefix(out, "ferula ") || strings.Count(out, "\n") != 1 {
		t.Errorf("%q", out)
	}
	if peerPrograms["prometheus"].version != app.APIVersion {
		t.Error("status/buildinfo has another version")
	}
}

func TestPeerProgram_OnlyAPeersNameListensOnAllAddresses(t *testing.T) {
	for line, want := range map[string]string{
		"ferula serve":                 "",
		"ferula query":                 "",
		"a.out serve":                  "",
		"prometheus":                   "--web.listen-address=0.0.0.0:9090",
		"thanos query":                 "--http-address=0.0.0.0:10902 --grpc-address=0.0.0.0:10901",
		"thanos query --grpc-address=": "--http-address=0.0.0.0:10902",
		"prometheus --web.listen-address=127.0.0.1:9090":                         "",
		"thanos store --http-address=127.0.0.1:1 --grpc-address=127.0.0.1:2":     "",
		"thanos query-frontend":                                                  "--http-address=0.0.0.0:10902",
		"prometheus --web.listen-address=127.0.0.1:1 --grpc-address=127.0.0.1:2": "",
	} {
		parts := strings.Fields(line)
		_, k, _, err := parseAs(t, parts[0], parts[1:]...)
		if err != nil {
			t.Fatal(line, err)
		}
		var log bytes.Buffer
		warnOpen(slog.New(slog.NewTextHandler(&log, nil)), k, flagValues(k))
		if got := log.String(); want == "" && got != "" || want != "" && strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", line, got)
		}
		for flag := range strings.FieldsSeq(want) {
			if !strings.Contains(log.String(), flag) {
				t.Errorf("%s: no %s in %q", line, flag, log.String())
			}
		}
	}
	for command := range peers {
		for name, f := range flagsOf(t, command) {
			if strings.HasPrefix(f.Default, allAddresses) || strings.HasPrefix(f.Default, ":") {
				t.Errorf("%s --%s=%s", command, name, f.Default)
			}
		}
	}
}

// What prometheus-operator starts, by its own code, is accepted, and listens on the port that it probes. test/e2e runs it.
func TestPeerProgram_ListensWhereTheOperatorProbes(t *testing.T) {
	files, err := filepath.Glob("../../test/e2e/testdata/operator/*.json")
	if err != nil || len(files) < 18 {
		t.Fatalf("%v: only %q", err, files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var started struct {
			Containers []struct {
				Name  string
				Args  []string
				Ports map[string]int
			}
		}
		if err := json.Unmarshal(text, &started); err != nil || len(started.Containers) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range started.Containers {
			program, _, _ := strings.Cut(c.Name, "-")
			cli, _, _, err := parseAs(t, program, c.Args...)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			addresses := map[string]string{"http": cli.Sidecar.Process.HTTPAddress, "grpc": cli.Sidecar.GRPCAddress}
			if program == "prometheus" {
				addresses = map[string]string{"web": cli.Serve.ListenAddress[0], "http-web": cli.Serve.ListenAddress[0]}
			}
			for name, port := range c.Ports {
				if !strings.HasSuffix(addresses[name], fmt.Sprintf(":%d", port)) {
					t.Errorf("%s: %s listens on %q, its port %s is %d", file, c.Name, addresses[name], name, port)
				}
			}
			if len(c.Ports) == 0 && addresses["web"] != "127.0.0.1:9090" {
				t.Errorf("%s: without ports %s listens on %q", file, c.Name, addresses["web"])
			}
		}
	}
}
