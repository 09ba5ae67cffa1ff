package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of deploy/kustomize.
type manifests struct {
	workloads []workload
	services  map[string]core.Service
	accounts  map[string]bool
}

// workload is a Deployment or a StatefulSet.
type workload struct {
	name, serviceName string
	selector          map[string]string
	pod               core.PodTemplateSpec
	claims            []string
}

var errManifest = errors.New("invalid manifest")

// add decodes a document strictly: unknown and repeated fields, wrong types, enumerations and quantities are errors.
func (m *manifests) add(document string) error {
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		return err
	}
	strict := func(object any) error {
		text, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return err
		}
		faults, err := json.UnmarshalStrict(text, object)
		if err = errors.Join(append(faults, err)...); err != nil {
			return fmt.Errorf("%w: %s %s: %w", errManifest, kind.APIVersion, kind.Kind, err)
		}
		return nil
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		var d apps.Deployment
		if err := strict(&d); err != nil {
			return err
		}
		m.workloads = append(m.workloads, workload{name: d.Name, selector: d.Spec.Selector.MatchLabels, pod: d.Spec.Template})
	case "apps/v1 StatefulSet":
		var s apps.StatefulSet
		if err := strict(&s); err != nil {
			return err
		}
		w := workload{name: s.Name, serviceName: s.Spec.ServiceName, selector: s.Spec.Selector.MatchLabels, pod: s.Spec.Template}
		for _, claim := range s.Spec.VolumeClaimTemplates {
			w.claims = append(w.claims, claim.Name)
		}
		m.workloads = append(m.workloads, w)
	case "v1 Service":
		var s core.Service
		if err := strict(&s); err != nil {
			return err
		}
		m.services[s.Name] = s
	case "v1 ServiceAccount":
		var s core.ServiceAccount
		if err := strict(&s); err != nil {
			return err
		}
		m.accounts[s.Name] = true
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		return strict(&rbac.ClusterRole{})
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		return strict(&rbac.ClusterRoleBinding{})
	default:
		return fmt.Errorf("%w: unknown object %s %s", errManifest, kind.APIVersion, kind.Kind)
	}
	return nil
}

const kustomizeDir = "../../deploy/kustomize"

var separator = regexp.MustCompile(`(?m)^---$`)

func readManifests(t *testing.T) *manifests {
	t.Helper()
	var kustomization struct {
		APIVersion         string
		Kind               string
		Namespace          string
		Resources          []string
		Images             []struct{ Name, NewName, NewTag string }
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		}
	}
	text, err := os.ReadFile(filepath.Join(kustomizeDir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	used := []string{"kustomization.yaml"}
	for _, c := range kustomization.ConfigMapGenerator {
		used = append(used, c.Files...)
	}
	m := &manifests{services: map[string]core.Service{}, accounts: map[string]bool{}}
	for _, name := range kustomization.Resources {
		used = append(used, name)
		text, err := os.ReadFile(filepath.Join(kustomizeDir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range separator.Split(string(text), -1) {
			if err := m.add(document); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	files, err := os.ReadDir(kustomizeDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(used, f.Name()) {
			t.Errorf("kustomization.yaml does not use %s", f.Name())
		}
	}
	return m
}

func TestDeploy_ManifestsHaveTheSchemaOfKubernetes(t *testing.T) {
	m := readManifests(t)
	if len(m.workloads) != 4 || len(m.services) != 4 {
		t.Errorf("%d workloads and %d services", len(m.workloads), len(m.services))
	}
	for _, w := range m.workloads {
		if !contains(w.pod.Labels, w.selector) || len(w.selector) == 0 {
			t.Errorf("%s: the selector %v does not select its pods", w.name, w.selector)
		}
		if w.serviceName != "" && m.services[w.serviceName].Name == "" {
			t.Errorf("%s: no service %s", w.name, w.serviceName)
		}
		if account := w.pod.Spec.ServiceAccountName; account != "" && !m.accounts[account] {
			t.Errorf("%s: no service account %s", w.name, account)
		}
		checkContainer(t, w)
	}
}

// checkContainer checks ports, probes, volumes and permissions of a workload's container.
func checkContainer(t *testing.T, w workload) {
	t.Helper()
	if len(w.pod.Spec.Containers) != 1 {
		t.Fatalf("%s has %d containers", w.name, len(w.pod.Spec.Containers))
	}
	c := w.pod.Spec.Containers[0]
	for _, probe := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || portOf(c, probe.HTTPGet.Port.StrVal) == 0 {
			t.Errorf("%s: a probe has no port of the container: %+v", w.name, probe)
		}
	}
	volumes := slices.Clone(w.claims)
	for _, v := range w.pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, mount := range c.VolumeMounts {
		if !slices.Contains(volumes, mount.Name) {
			t.Errorf("%s: no volume %s", w.name, mount.Name)
		}
	}
	// The ports are those of the flags.
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(arg, "=")
		if !strings.HasSuffix(name, "-address") {
			continue
		}
		_, port, err := net.SplitHostPort(value)
		if err != nil || !slices.ContainsFunc(c.Ports, func(p core.ContainerPort) bool { return fmt.Sprint(p.ContainerPort) == port }) {
			t.Errorf("%s: %s is no port of the container: %v", w.name, arg, err)
		}
	}
	s := c.SecurityContext
	if pod := w.pod.Spec.SecurityContext; pod == nil || pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Errorf("%s may run as root or write to its image", w.name)
	}
}

func portOf(c core.Container, name string) int32 {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

func contains(labels, selector map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// Each service selects one workload, and its ports lead to ports of the container.
func TestDeploy_ServicesLeadToTheirContainers(t *testing.T) {
	m := readManifests(t)
	for _, name := range slices.Sorted(maps.Keys(m.services)) {
		s := m.services[name]
		selected := 0
		for _, w := range m.workloads {
			if !contains(w.pod.Labels, s.Spec.Selector) {
				continue
			}
			selected++
			for _, p := range s.Spec.Ports {
				if portOf(w.pod.Spec.Containers[0], p.TargetPort.StrVal) == 0 {
					t.Errorf("service %s: %s has no port %q", name, w.name, p.TargetPort.StrVal)
				}
				// A headless service has no proxy that could change the port.
				if s.Spec.ClusterIP == "None" && portOf(w.pod.Spec.Containers[0], p.TargetPort.StrVal) != p.Port {
					t.Errorf("service %s: port %d is not that of %s", name, p.Port, w.name)
				}
			}
		}
		if selected != 1 {
			t.Errorf("service %s selects %d workloads", name, selected)
		}
	}
}

// The hosts that command lines name are services with these ports.
func TestDeploy_ConnectionsNameServices(t *testing.T) {
	m := readManifests(t)
	checked := 0
	for _, w := range m.workloads {
		for _, arg := range w.pod.Spec.Containers[0].Args {
			name, value, _ := strings.Cut(arg, "=")
			address := ""
			switch name {
			case "--endpoint":
				address = strings.TrimPrefix(value, "dns+")
			case "--query-frontend.downstream-url":
				u, err := url.Parse(value)
				if err != nil {
					t.Fatal(err)
				}
				address = u.Host
			default:
				continue
			}
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Fatal(err)
			}
			checked++
			if !slices.ContainsFunc(m.services[host].Spec.Ports, func(p core.ServicePort) bool { return fmt.Sprint(p.Port) == port }) {
				t.Errorf("%s: %s: no service %s with port %s", w.name, arg, host, port)
			}
		}
	}
	if checked < 3 {
		t.Errorf("only %d connections found", checked)
	}
}

func TestDeploy_FaultsOfManifestsAreFound(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(kustomizeDir, "store.yml"))
	if err != nil {
		t.Fatal(err)
	}
	document := separator.Split(string(text), -1)[0]
	for _, change := range [][2]string{
		{"", ""}, {"replicas: 1", "replica: 1"}, {"replicas: 1", "replicas: one"}, {"memory: 2Gi", "memory: 2 GB"}, {"containerPort: 10902", "containerPort: '10902'"},
		{"readOnlyRootFilesystem: true", "readonlyRootFilesystem: true"}, {"kind: StatefulSet", "kind: StatefullSet"}, {"replicas: 1", "replicas: 1\n  replicas: 2"},
	} {
		if change[0] != "" && !strings.Contains(document, change[0]) {
			t.Errorf("store.yml has no %q", change[0])
		}
		m := &manifests{services: map[string]core.Service{}, accounts: map[string]bool{}}
		if err := m.add(strings.Replace(document, change[0], change[1], 1)); (err == nil) != (change[0] == "") {
			t.Errorf("%q: %v", change, err)
		}
	}
}
