package outside

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	root    = "../.."
	prefix  = "github.com/ferula-io/ferula/"
	version = "v0.1.0"
)

// program is a program, and what it writes; a server is only built.
type program struct {
	modules, text, want string
	server              bool
}

// programs import the modules. The others are in the READMEs.
var programs = map[string]program{
	"metrics": {modules: "metrics", text: `package main

import (
	"os"

	"github.com/ferula-io/ferula/metrics"
)

var served = metrics.NewCounterVec("requests_total", "Requests served.", "path", "code")

func main() {
	served.With("/api", "200").Inc()
	metrics.WritePrometheus(os.Stdout, false)
}
`, want: "requests_total{path=\"/api\",code=\"200\"} 1\n"},
	"promcompat": {modules: "metrics metrics/promcompat", text: `package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat"
)

func main() {
	set := metrics.NewSet()
	set.NewCounter("jobs_total").Inc()
	registry := prometheus.NewRegistry()
	registry.MustRegister(promcompat.NewCollector(set))
	families, err := registry.Gather()
	fmt.Println(len(families), families[0].GetName(), err)
}
`, want: "1 jobs_total <nil>\n"},
}

func TestModules_AreImportedFromAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	proxy := t.TempDir()
	for _, module := range []string{"metrics", "promjson", "metrics/promcompat"} {
		publish(t, proxy, module)
	}
	downloaded := strings.TrimSpace(run(t, ".", nil, "go", "env", "GOMODCACHE"))
	env := []string{
		"GOWORK=off", "GOSUMDB=off", "GOFLAGS=-mod=mod -modcacherw", "GOMODCACHE=" + t.TempDir(),
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(downloaded, "cache", "download") + ",off",
	}
	all := maps.Clone(programs)
	text, result := programOf(t, "promjson")
	all["promjson"] = program{modules: "promjson", text: text, want: result}
	text, _ = programOf(t, "metrics")
	all["metrics, a server"] = program{modules: "metrics", text: text, server: true}
	for name, p := range all {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var mod strings.Builder
			mod.WriteString("module example.org/outside\n\ngo 1.26.0\n\n")
			for module := range strings.FieldsSeq(p.modules) {
				fmt.Fprintf(&mod, "require %s%s %s\n", prefix, module, version)
			}
			if name == "promcompat" {
				for _, required := range requirements(t) {
					mod.WriteString("require " + required + "\n")
				}
			}
			write(t, filepath.Join(dir, "go.mod"), mod.String())
			write(t, filepath.Join(dir, "main.go"), p.text)
			if p.server {
				run(t, dir, env, "go", "build", "-o", "server", ".")
				return
			}
			if got := run(t, dir, env, "go", "run", "."); got != p.want {
				t.Errorf("got %q, want %q", got, p.want)
			}
		})
	}
}

// deploy/tags.sh refuses what is no release, and creates tags that other programs can require. None of the tagged modules requires another one by its
// directory.
func TestTags_ModulesRequireEachOtherByVersion(t *testing.T) {
	if err := exec.Command("git", "-C", root, "rev-parse", "HEAD").Run(); err != nil {
		t.Skip("no git repository")
	}
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	clone := t.TempDir()
	run(t, ".", nil, "git", "clone", "-q", "--shared", "--sparse", "--no-tags", repository, clone)
	run(t, clone, nil, "git", "sparse-checkout", "set", "deploy")
	env := []string{"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org"}
	script := filepath.Join(repository, "deploy", "tags.sh")
	refuse := func(version, reason string) {
		t.Helper()
		cmd := exec.Command(script, version)
		cmd.Dir = clone
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), reason) {
			t.Errorf("version %q: %v: %s; want %q", version, err, out, reason)
		}
	}
	refuse(version, "CHANGELOG.md: the first section is")
	refuse(version, "deploy/overlay/kustomization.yaml: newTag is not")
	write(t, filepath.Join(clone, "MAINTAINERS.md"), "| not named yet | | |\n")
	run(t, clone, env, "git", "rm", "-q", "--ignore-unmatch", "deploy/release.pub")
	run(t, clone, env, "git", "commit", "-qam", "nobody")
	refuse(version, "MAINTAINERS.md: nobody is named")
	refuse(version, "deploy/release.pub: the key of the releases is missing")
	release(t, clone)
	write(t, filepath.Join(clone, "MAINTAINERS.md"), "| A | a | all |\n")
	write(t, filepath.Join(clone, "deploy", "release.pub"), "ssh-ed25519 AAAA\n")
	refuse(version, "the working tree is not clean")
	run(t, clone, env, "git", "add", "-A")
	run(t, clone, env, "git", "commit", "-qm", "release")
	run(t, clone, env, script, version)
	for _, module := range []string{"metrics", "promjson", "metrics/promcompat"} {
		mod := run(t, clone, env, "git", "show", module+"/"+version+":"+module+"/go.mod")
		if strings.Contains(mod, "replace") || strings.Contains(mod, "v0.0.0\n") {
			t.Errorf("%s: %s", module, mod)
		}
		if want := prefix + "metrics " + version; module == "metrics/promcompat" && !strings.Contains(mod, want) {
			t.Errorf("%s does not require %s: %s", module, want, mod)
		}
	}
	refuse(version, "metrics/"+version+" exists")
	for _, wrong := range []string{"", "1.2.3", "v2.0.0", "v1"} {
		refuse(wrong, "usage")
	}
	if tags := run(t, clone, env, "git", "tag"); strings.Count(tags, "\n") != 4 {
		t.Errorf("tags %s", tags)
	}
}

// release writes the version into the files of a repository that name it.
func release(t *testing.T, repository string) {
	t.Helper()
	number := strings.TrimPrefix(version, "v")
	write(t, filepath.Join(repository, "CHANGELOG.md"), "# Changelog\n\n## "+number+" / 2026-01-01\n")
	named := regexp.MustCompile(`((?m)^(?:version|appVersion): |ferula, tag: |/ferula:|newTag: )[0-9]+\.[0-9]+\.[0-9]+`)
	for _, file := range []string{
		"chart/Chart.yaml", "chart/values.yaml", "kube-prometheus-stack.yml", "kustomize/kustomization.yaml", "kustomize/sidecar/kustomization.yaml",
		"kustomize/profiles-compact/kustomization.yaml", "overlay/kustomization.yaml",
	} {
		path := filepath.Join(repository, "deploy", file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, named.ReplaceAllString(string(text), "${1}"+number))
	}
}

// publish adds a module of this repository to a directory with the layout of a module proxy, with the versions
// that a release would write into its go.mod.
func publish(t *testing.T, proxy, module string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(prefix+module), "@v")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, module, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	mod := regexp.MustCompile(`(?m)^replace .*\n`).ReplaceAllString(string(text), "")
	mod = strings.ReplaceAll(mod, prefix+"metrics v0.0.0", prefix+"metrics "+version)
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "list"), version+"\n")
	write(t, filepath.Join(dir, version+".info"), string(info))
	write(t, filepath.Join(dir, version+".mod"), mod)
	file, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(file)
	source := os.DirFS(filepath.Join(root, module))
	err = fs.WalkDir(source, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if _, err := fs.Stat(source, path+"/go.mod"); err == nil && path != "." {
				return fs.SkipDir // another module
			}
			return nil
		}
		content, err := fs.ReadFile(source, path)
		if err != nil {
			return err
		}
		if path == "go.mod" {
			content = []byte(mod)
		}
		w, err := archive.Create(prefix + module + "@" + version + "/" + path)
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// programOf returns the program in the README of a module, and the text that it writes according to the README.
func programOf(t *testing.T, module string) (text, result string) {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(root, module, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(readme), "```go\npackage main\n")
	text, rest, end := strings.Cut(text, "```\n")
	if !ok || !end {
		t.Fatalf("no program in the README of %s", module)
	}
	if _, result, ok = strings.Cut(rest, "\nIt writes `"); ok {
		result, _, _ = strings.Cut(result, "`")
	}
	return "package main\n" + text, result
}

// requirements returns the modules that promcompat requires, in the versions of the workspace. Those are in the module cache
// after a build of this test; the versions of promcompat's go.mod may be older.
func requirements(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "metrics", "promcompat", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-m", "-f", "{{.Path}} {{.Version}}"}
	for line := range strings.Lines(string(text)) {
		if path, required, ok := strings.Cut(strings.TrimSpace(line), " v"); ok && required != "" && !strings.HasPrefix(path, prefix) && !strings.Contains(path, " ") {
			args = append(args, path)
		}
	}
	return strings.Split(strings.TrimSpace(run(t, root, nil, "go", args...)), "\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, env []string, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
