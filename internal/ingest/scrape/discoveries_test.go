package scrape

import (
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles/ingest"
)

// discoveryImports returns the packages of Prometheus' discoveries that files import.
func discoveryImports(t *testing.T, files ...string) (paths []string) {
	t.Helper()
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if path := strings.Trim(spec.Path.Value, `"`); strings.HasPrefix(path, "github.com/prometheus/prometheus/discovery/") {
				paths = append(paths, path)
			}
		}
	}
	slices.Sort(paths)
	return paths
}

func TestDiscoveries_AreThoseOfPrometheus(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/prometheus/prometheus/discovery").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := discoveryImports(t, filepath.Join(strings.TrimSpace(string(dir)), "install", "install.go"))
	if got := discoveryImports(t, "discoveries.go", "discoveries_clouds.go"); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("linked are\n%s\nPrometheus has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Each section is either accepted, or its error names the build tag.
func TestDiscoveries_SectionsOfCloudsNameTheBuildTag(t *testing.T) {
	for _, section := range cloudSections {
		_, err := parse("scrape_configs: [{job_name: a, "+section+": []}]", Defaults{}, slog.New(slog.DiscardHandler))
		if withClouds := err == nil; withClouds != cloudsLinked {
			t.Errorf("%s: %v", section, err)
		}
		if err != nil && !strings.Contains(err.Error(), section+" is not in this build") {
			t.Errorf("%s: %v", section, err)
		}
	}
}

// everyBuild are the discoveries that need no build tag.
var everyBuild = []string{
	"consul", "digitalocean", "dns", "docker", "dockerswarm", "eureka", "file", "hetzner", "http", "kubernetes", "kuma", "linode", "marathon",
	"nerve", "nomad", "openstack", "ovhcloud", "puppetdb", "scaleway", "serverset", "stackit", "triton", "uyuni", "vultr",
}

func TestDiscoveries_EveryBuildHasThese(t *testing.T) {
	for _, name := range everyBuild {
		if _, err := parse("scrape_configs: [{job_name: a, "+name+"_sd_configs: []}]\nalerting: {alertmanagers: [{"+name+"_sd_configs: []}]}", Defaults{}, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A section is registered for the process: the targets of profiles may use it, too.
func TestDiscoveries_AreThoseOfProfilesToo(t *testing.T) {
	for _, name := range everyBuild {
		path := filepath.Join(t.TempDir(), "profiles.yml")
		if err := os.WriteFile(path, []byte("scrape_configs: [{job_name: a, "+name+"_sd_configs: []}]"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ingest.LoadConfig(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
