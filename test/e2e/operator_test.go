package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// started is what prometheus-operator starts for a Prometheus resource. test/operator writes testdata/operator with the
// operator's own code.
type started struct {
	Versions   []string
	Containers []struct {
		Name          string
		Command, Args []string
		Ports         map[string]int
		Probes        map[string]probe
		Mounts        []string
	}
	Files map[string]string
}

type probe struct {
	Path, Port, Scheme string
	Exec               []string
}

// mounted is a path in a container. Tests have it below a directory of their own.
var mounted = regexp.MustCompile(`(^|[=" ])(/(?:etc/prometheus|etc/thanos|var/log/prometheus|prometheus)(?:/|["\s]|$))`)

// linked returns the binary under the name of a peer, as images have it.
func linked(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	noError(t, os.Symlink(binary(t), path))
	return path
}

// startNamed runs the binary under a peer's name and waits until it is ready. Instead of the ports of a container it
// listens on free ports of loopback.
func startNamed(t *testing.T, dir, name string, args []string) *process {
	t.Helper()
	local := []string{"--web.listen-address=127.0.0.1:0"}
	if name == "thanos" {
		local = []string{"--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0"}
		if args[0] == "query-frontend" {
			local = local[:1]
		}
	}
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return slices.ContainsFunc(local, func(l string) bool { return strings.HasPrefix(arg, l[:strings.Index(l, "=")+1]) })
	})
	cmd := exec.Command(linked(t, name), append(args, local...)...)
	cmd.Dir = dir
	p := launchCommand(t, cmd)
	p.server = &server{t: t, base: p.logged(t, readyNamed)}
	if !strings.HasPrefix(p.base, "http") {
		p.base = "http://" + p.base
	}
	return p
}

// readyNamed matches the line of every command.
var readyNamed = regexp.MustCompile(`(?:msg=|"msg":")Ready.*(?:url=|http=|"url":")((?:https?://)?[^ /]+)`)

// passes fails the test unless a probe succeeds as the kubelet sends it: to the address of the pod, of any certificate.
func (p probe) passes(t *testing.T, base string) {
	t.Helper()
	host := "10.1.2.3:9090"
	if p.Exec != nil { // a shell that sends the request within the container
		host = "localhost:9090"
		_, p.Path, _ = strings.Cut(strings.Join(p.Exec, " "), "http://"+host)
		p.Path, _, _ = strings.Cut(p.Path, ";")
	}
	scheme, _, _ := strings.Cut(base, ":")
	if want := strings.ToLower(p.Scheme); want != "" && scheme != want {
		t.Errorf("the probe sends %s requests to %s", want, base)
	}
	req := try(http.NewRequest(http.MethodGet, base+strings.TrimSpace(p.Path), nil)).must(t)
	req.Host = host
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp := try(client.Do(req)).must(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%+v: %s", p, resp.Status)
	}
}

// expectedLine is a warning or error: flags that the operator sets and that have no effect, and what is not there in this
// test, a cluster and a receiver of samples.
var expectedLine = regexp.MustCompile(`flag="?--web\.(page-title|console\.templates|console\.libraries)|in-cluster|component="?remote`)

func TestOperator_StartsAndProbesWhatItMakesOfEveryResource(t *testing.T) {
	files := try(filepath.Glob("testdata/operator/*.json")).must(t)
	if len(files) < 18 {
		t.Fatalf("only %q", files)
	}
	binary(t) // built before the first case
	guarded := newGuarded(t)
	pem := map[string]string{
		"@cert": string(try(os.ReadFile(guarded.file("server.pem"))).must(t)), "@key": string(try(os.ReadFile(guarded.file("server-key.pem"))).must(t)),
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s started
			decode(t, string(try(os.ReadFile(file)).must(t)), &s)
			root := t.TempDir()
			local := func(text string) string { return mounted.ReplaceAllString(text, "${1}"+root+"${2}") }
			for path, text := range s.Files {
				if pem[text] != "" {
					text = pem[text]
				}
				noError(t, os.MkdirAll(filepath.Dir(root+path), 0o755))
				writeFile(t, root+path, local(text))
			}
			base := ""
			for _, c := range s.Containers {
				args := slices.Clone(c.Args)
				for i := range args {
					args[i] = local(strings.Replace(args[i], "://localhost:9090", strings.TrimPrefix(base, "http"), 1))
				}
				for _, mount := range c.Mounts {
					if local(mount) == mount {
						t.Errorf("%s has no directory in this test", mount)
					}
					if _, isFile := s.Files[mount]; !isFile {
						noError(t, os.MkdirAll(root+mount, 0o755))
					}
				}
				if c.Command != nil {
					t.Errorf("%s is started by %q", c.Name, c.Command)
				}
				program, _, _ := strings.Cut(c.Name, "-")
				p := startNamed(t, filepath.Join(root, "prometheus"), program, args)
				if program == "thanos" { // the operator does not probe it
					p.expect("/-/ready", 200)
					continue
				}
				base = p.base
				if len(c.Probes) != 3 {
					t.Errorf("probes: %+v", c.Probes)
				}
				for _, probe := range c.Probes {
					probe.passes(t, base)
				}
				checkStarted(t, p, args)
			}
		})
	}
}

// checkStarted fails the test if a server under Prometheus' name has warnings or errors of its own, other ports or open
// receivers.
func checkStarted(t *testing.T, p *process, args []string) {
	t.Helper()
	for line := range strings.SplitSeq(p.log.String(), "\n") {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			if !expectedLine.MatchString(line) {
				t.Error(line)
			}
		}
	}
	if p.scheme() == "https" {
		return
	}
	prefix := ""
	for _, arg := range args {
		if path, ok := strings.CutPrefix(arg, "--web.route-prefix="); ok {
			prefix = strings.TrimSuffix(path, "/")
		}
	}
	var flags struct{ Data map[string]string }
	_, body := p.get(prefix + "/api/v1/status/flags")
	decode(t, body, &flags)
	receives := slices.Contains(args, "--web.enable-remote-write-receiver")
	if flags.Data["grpc-address"] != "" || flags.Data["web.enable-remote-write-receiver"] != fmt.Sprint(receives) || flags.Data["profiles.enable-receiver"] != "false" {
		t.Errorf("it opens more than Prometheus: %q", flags.Data)
	}
	_, config := p.get(prefix + "/api/v1/status/config")
	if !strings.Contains(config, "prometheus-it-0") || strings.Contains(config, "$(") {
		t.Errorf("the configuration is %s", config)
	}
	if status, text := p.post(prefix+"/-/reload", "", ""); slices.Contains(args, "--web.enable-lifecycle") && status != http.StatusOK {
		t.Errorf("config-reloader gets %d %s", status, text)
	}
	noError(t, p.cmd.Process.Signal(syscall.SIGHUP)) // the operator's strategy ProcessSignal
}

func (p *process) scheme() string {
	scheme, _, _ := strings.Cut(p.base, ":")
	return scheme
}

// The command lines of Bitnami's chart of Thanos, version 17, with its usual values. Names of services are not found here.
func TestThanosCharts_CommandLinesStart(t *testing.T) {
	dir := t.TempDir()
	noError(t, os.Mkdir(filepath.Join(dir, "bucket"), 0o755))
	bucket := writeFile(t, filepath.Join(dir, "objstore.yml"), fmt.Sprintf("type: FILESYSTEM\nconfig: {directory: %s}\n", filepath.Join(dir, "bucket")))
	cache := writeFile(t, filepath.Join(dir, "cache.yml"), "type: IN-MEMORY\nconfig: {max_size: 256MB, max_item_size: 125MB}\n")
	responses := writeFile(t, filepath.Join(dir, "config.yml"), "type: IN-MEMORY\nconfig: {max_size: 512MB, max_size_items: 100, validity: 0s}\n")
	query := startNamed(t, dir, "thanos", []string{"query", "--log.level=info", "--log.format=logfmt", "--grpc-address=0.0.0.0:10901",
		"--http-address=0.0.0.0:10902", "--query.replica-label=replica", "--query.replica-label=prometheus_replica",
		"--endpoint=dnssrv+_grpc._tcp.prometheus-thanos.invalid", "--endpoint=dnssrv+_grpc._tcp.thanos-storegateway.invalid",
		"--alert.query-url=http://thanos-query.invalid:9090", "--query.auto-downsampling"})
	query.expect("/-/ready", 200)
	for _, args := range [][]string{
		{"query-frontend", "--log.level=info", "--log.format=logfmt", "--http-address=0.0.0.0:9090",
			"--query-frontend.downstream-url=" + query.base, "--query-range.response-cache-config-file=" + responses,
			"--query-frontend.compress-responses", "--cache-compression-type=snappy", "--labels.split-interval=12h"},
		{"store", "--log.level=info", "--log.format=logfmt", "--grpc-address=0.0.0.0:10901", "--http-address=0.0.0.0:10902",
			"--data-dir=" + filepath.Join(dir, "data"), "--objstore.config-file=" + bucket, "--index-cache.config-file=" + cache,
			"--min-time=-6w", "--max-time=-2d", "--sync-block-duration=3m", "--chunk-pool-size=2GB"},
	} {
		startNamed(t, dir, "thanos", args).expect("/-/ready", 200)
	}
}

// A process that nothing tells otherwise ends with a reason if it cannot do what the peer does.
func TestNamed_WhatIsNotThereEndsWithAReason(t *testing.T) {
	for line, want := range map[string]string{
		"thanos compact --wait":                    "run it from Thanos' own image",
		"prometheus --agent --storage.agent.path=": "no Agent mode",
		"prometheus": "prometheus.yml",
	} {
		parts := strings.Fields(line)
		cmd := exec.Command(linked(t, parts[0]), parts[1:]...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	for name, want := range map[string]string{"prometheus": "prometheus, version 3.15.0 (branch: ferula ", "thanos": "thanos, version 0.42.4 (branch: ferula "} {
		out := try(exec.Command(linked(t, name), "--version").Output()).must(t)
		if !strings.HasPrefix(string(out), want) {
			t.Errorf("%s", out)
		}
	}
}
