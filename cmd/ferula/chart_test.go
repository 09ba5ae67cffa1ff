package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
)

const chartDir = "../../deploy/chart"

// readChart returns what `make chart` has rendered, by the name of the file of values.
func readChart(t *testing.T) map[string]*manifests {
	t.Helper()
	rendered := map[string]*manifests{}
	paths, err := filepath.Glob("testdata/chart/*.values.yaml")
	if err != nil || len(paths) < 3 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		golden, err := os.ReadFile(strings.Replace(path, ".values.", ".golden.", 1))
		if err != nil {
			t.Fatal(err)
		}
		digest, documents, _ := strings.Cut(string(golden), "\n")
		if want := "# " + digestOfChart(t, path); digest != want {
			t.Errorf("%s: the chart or its values have changed: call make chart", path)
		}
		m := newManifests()
		m.accounts["default"], m.accounts["reader"] = true, true
		m.files["thanos-objstore"] = []string{"objstore.yml", "thanos.yaml"}
		for _, document := range separator.Split(documents, -1) {
			if strings.TrimSpace(document) == "" {
				continue
			}
			if err := m.add(document); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		for _, w := range m.workloads {
			for i, c := range w.pod.Spec.Containers {
				if strings.Contains(c.Image, "/thanos:") {
					w.pod.Spec.Containers[i].Args = slices.DeleteFunc(c.Args, isOfThanosOnly)
				}
			}
		}
		rendered[strings.TrimSuffix(filepath.Base(path), ".values.yaml")] = m
	}
	return rendered
}

// isOfThanosOnly reports the one argument of the chart that ferula refuses; so does the chart, for ferula's image.
func isOfThanosOnly(arg string) bool { return strings.HasPrefix(arg, "--store.caching-bucket.config=") }

// digestOfChart is what deploy/chart.sh writes into the first line of a rendered file.
func digestOfChart(t *testing.T, values string) string {
	t.Helper()
	h := sha256.New()
	for _, pattern := range []string{chartDir + "/*.*", chartDir + "/templates/*", values} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			h.Write(text)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestChart_RenderedObjectsAreValid(t *testing.T) {
	kinds := map[string]int{}
	for name, m := range readChart(t) {
		t.Run(name, func(t *testing.T) {
			m.checkWorkloads(t)
			m.checkServices(t)
			if parts := m.checkCommandLines(t); !parts["query"] || !parts["store"] {
				t.Errorf("containers of %v", parts)
			}
			for kind, n := range m.kinds {
				kinds[kind] += n
			}
			for _, b := range m.backends {
				if !slices.ContainsFunc(m.services[b.Name].Spec.Ports, func(p core.ServicePort) bool { return p.Name == b.Port.Name }) {
					t.Errorf("an Ingress leads to %+v, which no service has", b)
				}
			}
			for _, w := range m.workloads {
				for _, c := range w.pod.Spec.Containers {
					m.checkChartContainer(t, c)
				}
			}
		})
	}
	if len(kinds) != 11 {
		t.Errorf("the values have %d kinds of objects, not all of the chart's: %v", len(kinds), kinds)
	}
}

// checkChartContainer checks that ferula accepts a container's command line, and that the services in it exist.
func (m *manifests) checkChartContainer(t *testing.T, c core.Container) {
	t.Helper()
	if _, err := parse(t, c.Args...); err != nil {
		t.Errorf("%s: %v", c.Name, err)
	}
	for _, arg := range c.Args {
		name, ok := strings.CutPrefix(arg, "--endpoint=dnssrv+_grpc._tcp.")
		if name, _, _ = strings.Cut(name, "."); ok && strings.Contains(name, "storegateway") {
			s := m.services[name]
			if !slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == "grpc" }) || s.Spec.ClusterIP != "None" {
				t.Errorf("%s: %s: no headless service with a port grpc: %+v", c.Name, arg, s.Spec)
			}
		}
		if host, ok := strings.CutPrefix(arg, "--query-frontend.downstream-url=http://"); ok {
			name, port, _ := strings.Cut(host, ":")
			if !slices.ContainsFunc(m.services[name].Spec.Ports, func(p core.ServicePort) bool { return fmt.Sprint(p.Port) == port }) {
				t.Errorf("%s: %s: no service with this port", c.Name, arg)
			}
		}
	}
}

func TestChart_FaultsOfRenderedObjectsAreFound(t *testing.T) {
	golden, err := os.ReadFile("testdata/chart/bitnami.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"minAvailable: 1", "minAvailabel: 1"}, {"averageUtilization: 80", "averageUtilization: high"}, {"ingressClassName:", "ingressClass:"},
		{"      interval: 30s", "      intervall: 30s"}, {"stringData:", "strings:"}, {"whenUnsatisfiable:", "whenUnsatisfied:"},
	} {
		if !strings.Contains(string(golden), change[0]) {
			t.Errorf("no %q", change[0])
		}
		if err := newManifests().addAll([]byte(strings.Replace(string(golden), change[0], change[1], 1))); err == nil {
			t.Errorf("%q is accepted", change)
		}
	}
}

// mayDiffer are the flags whose values depend on the place where a part runs, or on what is beside it.
var mayDiffer = []string{
	"http-address", "grpc-address", "web.listen-address", "data-dir", "storage.tsdb.path", "tsdb.path", "config.file", "reloader.config-file",
	"objstore.config-file", "retention", "endpoint", "endpoint.sd-config-file", "query.replica-label", "query-frontend.downstream-url",
	"query-range.response-cache-config",
}

// Units, manifests and the chart start a part in one way: all flags have the same values, but those of mayDiffer.
func TestDeploy_APartHasTheSameFlagsEverywhere(t *testing.T) {
	calls := deployedCalls(t)
	for name, m := range readChart(t) {
		for _, w := range m.workloads {
			if name == "defaults" {
				calls["chart/"+w.name] = w.pod.Spec.Containers[0].Args
			}
		}
	}
	flags, places := map[string]map[string]string{}, map[string]int{}
	for _, place := range slices.Sorted(maps.Keys(calls)) {
		part := calls[place][0]
		if places[part]++; flags[part] == nil {
			flags[part] = map[string]string{}
		}
		for name, value := range effectiveFlags(t, calls[place]) {
			if before, ok := flags[part][name]; ok && before != value && !slices.Contains(mayDiffer, name) {
				t.Errorf("%s: --%s=%s, elsewhere %s", place, name, value, before)
			}
			flags[part][name] = value
		}
	}
	for _, part := range []string{"query", "query-frontend", "store"} {
		if places[part] < 3 {
			t.Errorf("%s is started in %d places", part, places[part])
		}
	}
}

// The version of the last release, or of the one that is being made, is in all files that name an image.
func TestDeploy_FilesNameTheVersionOfTheChangelog(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	released := regexp.MustCompile(`(?m)^## (\d\S+) / `).FindStringSubmatch(read("CHANGELOG.md"))
	if released == nil {
		t.Fatal("CHANGELOG.md names no release")
	}
	version := released[1]
	for path, want := range map[string]string{
		"deploy/chart/Chart.yaml": "version: ", "deploy/chart/values.yaml": "repository: ferula-io/ferula, tag: ", "deploy/kube-prometheus-stack.yml": "/ferula:",
		"deploy/kustomize/kustomization.yaml": "newTag: ", "deploy/kustomize/sidecar/kustomization.yaml": "newTag: ",
		"deploy/kustomize/profiles-compact/kustomization.yaml": "newTag: ", "deploy/overlay/kustomization.yaml": "newTag: ",
	} {
		if !strings.Contains(read(path), want+version) {
			t.Errorf("%s does not contain %s%s", path, want, version)
		}
	}
}
