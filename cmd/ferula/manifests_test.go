package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of directories of deploy/kustomize, or of a rendered chart.
type manifests struct {
	workloads []workload
	services  map[string]core.Service
	accounts  map[string]bool
	policies  []networking.NetworkPolicy
	backends  []networking.IngressServiceBackend
	files     map[string][]string // by configMap or secret
	kinds     map[string]int
}

// workload is a Deployment or a StatefulSet.
type workload struct {
	name, serviceName string
	selector          map[string]string
	pod               core.PodTemplateSpec
	claims            []string
}

var errManifest = errors.New("invalid manifest")

// secretFiles are the secrets that deploy/README.md creates.
var secretFiles = map[string][]string{"ferula-bucket": {"bucket.yml"}}

func newManifests() *manifests {
	return &manifests{services: map[string]core.Service{}, accounts: map[string]bool{}, files: maps.Clone(secretFiles), kinds: map[string]int{}}
}

// strict decodes a document: unknown and repeated fields, wrong types, enumerations and quantities are errors.
func strict(document string, object any) error {
	text, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		return err
	}
	faults, err := json.UnmarshalStrict(text, object)
	if err = errors.Join(append(faults, err)...); err != nil {
		return fmt.Errorf("%w: %T: %w", errManifest, object, err)
	}
	return nil
}

func (m *manifests) add(document string) error {
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		return err
	}
	m.kinds[kind.Kind]++
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		var d apps.Deployment
		if err := strict(document, &d); err != nil {
			return err
		}
		m.workloads = append(m.workloads, workload{name: d.Name, selector: d.Spec.Selector.MatchLabels, pod: d.Spec.Template})
	case "apps/v1 StatefulSet":
		var s apps.StatefulSet
		if err := strict(document, &s); err != nil {
			return err
		}
		w := workload{name: s.Name, serviceName: s.Spec.ServiceName, selector: s.Spec.Selector.MatchLabels, pod: s.Spec.Template}
		for _, claim := range s.Spec.VolumeClaimTemplates {
			w.claims = append(w.claims, claim.Name)
		}
		m.workloads = append(m.workloads, w)
	case "v1 Service":
		var s core.Service
		if err := strict(document, &s); err != nil {
			return err
		}
		m.services[s.Name] = s
	case "v1 ServiceAccount":
		var s core.ServiceAccount
		if err := strict(document, &s); err != nil {
			return err
		}
		m.accounts[s.Name] = true
	case "networking.k8s.io/v1 NetworkPolicy":
		var p networking.NetworkPolicy
		if err := strict(document, &p); err != nil {
			return err
		}
		m.policies = append(m.policies, p)
	case "v1 ConfigMap":
		var c core.ConfigMap
		if err := strict(document, &c); err != nil {
			return err
		}
		m.files[c.Name] = append(m.files[c.Name], slices.Sorted(maps.Keys(c.Data))...)
	case "v1 Secret":
		var s core.Secret
		if err := strict(document, &s); err != nil {
			return err
		}
		m.files[s.Name] = append(m.files[s.Name], slices.Sorted(maps.Keys(s.StringData))...)
	case "policy/v1 PodDisruptionBudget":
		return strict(document, &policy.PodDisruptionBudget{})
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return strict(document, &autoscaling.HorizontalPodAutoscaler{})
	case "networking.k8s.io/v1 Ingress":
		var i networking.Ingress
		if err := strict(document, &i); err != nil {
			return err
		}
		for _, rule := range i.Spec.Rules {
			for _, p := range rule.HTTP.Paths {
				m.backends = append(m.backends, *p.Backend.Service)
			}
		}
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return strict(document, &serviceMonitor{})
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		return strict(document, &rbac.ClusterRole{})
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		return strict(document, &rbac.ClusterRoleBinding{})
	default:
		return fmt.Errorf("%w: unknown object %s %s", errManifest, kind.APIVersion, kind.Kind)
	}
	return nil
}

// serviceMonitor has the fields of prometheus-operator's ServiceMonitor that are used.
type serviceMonitor struct {
	meta.TypeMeta
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		JobLabel          string `json:"jobLabel"`
		NamespaceSelector struct {
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		Selector  meta.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port          string `json:"port"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			ScrapeTimeout string `json:"scrapeTimeout"`
		} `json:"endpoints"`
	} `json:"spec"`
}

const (
	kustomizeDir = "../../deploy/kustomize"
	ferulaImage  = "ferula"
)

// kustomizations are the base and the directories that can be added to it.
var kustomizations = []string{kustomizeDir, kustomizeDir + "/sidecar", kustomizeDir + "/profiles-compact", kustomizeDir + "/network-policy"}

var separator = regexp.MustCompile(`(?m)^---$`)

func readManifests(t *testing.T) *manifests {
	t.Helper()
	m := newManifests()
	for _, dir := range kustomizations {
		m.read(t, dir)
	}
	return m
}

// read adds the objects of a directory.
func (m *manifests) read(t *testing.T, dir string) {
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
		GeneratorOptions struct{ DisableNameSuffixHash bool }
	}
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	if kustomization.Namespace != "ferula" {
		t.Errorf("%s has the namespace %q", dir, kustomization.Namespace)
	}
	used := []string{"kustomization.yaml"}
	for _, c := range kustomization.ConfigMapGenerator {
		used = append(used, c.Files...)
		m.files[c.Name] = append(m.files[c.Name], c.Files...)
	}
	for _, name := range kustomization.Resources {
		used = append(used, name)
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range separator.Split(string(text), -1) {
			if err := m.add(document); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(used, f.Name()) && !slices.Contains(kustomizations, dir+"/"+f.Name()) {
			t.Errorf("kustomization.yaml of %s does not use %s", dir, f.Name())
		}
	}
}

func TestDeploy_ManifestsHaveTheSchemaOfKubernetes(t *testing.T) {
	m := readManifests(t)
	if len(m.workloads) != 6 || len(m.services) != 6 || len(m.policies) != 3 {
		t.Errorf("%d workloads, %d services and %d network policies", len(m.workloads), len(m.services), len(m.policies))
	}
	m.checkWorkloads(t)
	readme, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, files := range secretFiles {
		if !strings.Contains(string(readme), "create secret generic "+name+" --from-file="+files[0]) {
			t.Errorf("README.md does not create the secret %s", name)
		}
	}
}

// checkWorkloads checks that workloads name services, accounts, configMaps and secrets that exist, and their containers.
func (m *manifests) checkWorkloads(t *testing.T) {
	t.Helper()
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
		for _, v := range w.pod.Spec.Volumes {
			if name := sourceOf(v); name != "" && m.files[name] == nil {
				t.Errorf("%s: nothing makes %s", w.name, name)
			}
		}
		for _, c := range w.pod.Spec.Containers {
			checkContainer(t, w, c)
		}
	}
}

// sourceOf returns the name of the configMap or secret of a volume; "" for other volumes.
func sourceOf(v core.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return v.ConfigMap.Name
	case v.Secret != nil:
		return v.Secret.SecretName
	}
	return ""
}

// checkContainer checks probes, volumes and permissions of a container.
func checkContainer(t *testing.T, w workload, c core.Container) {
	t.Helper()
	for want, probe := range map[string]*core.Probe{"/-/healthy": c.LivenessProbe, "/-/ready": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || portOf(c, probe.HTTPGet.Port.StrVal) == 0 || probe.HTTPGet.Path != want {
			t.Errorf("%s: %s: a probe has no port of the container or is not of %s: %+v", w.name, c.Name, want, probe)
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
	s, pod := c.SecurityContext, w.pod.Spec.SecurityContext
	if pod == nil || pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Errorf("%s: %s may run as root or write to its image", w.name, c.Name)
	}
	// Without the group a new volume belongs to root.
	if pod == nil || pod.FSGroup == nil || pod.RunAsGroup == nil || *pod.FSGroup != *pod.RunAsGroup {
		t.Errorf("%s: the volumes do not belong to the group of the process", w.name)
	}
}

// writesTemp are parts that write temporary files.
var writesTemp = map[string]string{"query-frontend": "parts of cached responses that exceed its memory"}

// Addresses, directories and files of the command line are ports, writable volumes and mounted files.
func TestDeploy_ContainersHaveWhatTheirCommandLinesName(t *testing.T) {
	if parts := readManifests(t).checkCommandLines(t); len(parts) != 6 {
		t.Errorf("manifests of %v", parts)
	}
}

// isPart reports whether ferula's flags are those of a container: of its own image, or of Thanos' image in a chart.
func isPart(c core.Container) bool {
	name, _, _ := strings.Cut(path.Base(c.Image), ":")
	return name == ferulaImage || name == "thanos"
}

// checkCommandLines returns the parts whose command lines were checked.
func (m *manifests) checkCommandLines(t *testing.T) map[string]bool {
	t.Helper()
	parts := map[string]bool{}
	for _, w := range m.workloads {
		for _, c := range w.pod.Spec.Containers {
			if !isPart(c) {
				continue
			}
			parts[c.Args[0]] = true
			listens := map[string]bool{}
			for name, value := range effectiveFlags(t, c.Args) {
				switch {
				case strings.HasSuffix(name, "-address"):
					host, port, err := net.SplitHostPort(value)
					if err != nil || host != "0.0.0.0" {
						t.Errorf("%s: no other pod reaches --%s=%s: %v", w.name, name, value, err)
					}
					listens[port] = true
				case slices.Contains(writtenDirs, name), name == "tsdb.path":
					if v, mount := m.volumeAt(w, c, value); mount.Name == "" || mount.ReadOnly || sourceOf(v) != "" {
						t.Errorf("%s: --%s=%s is in no writable volume", w.name, name, value)
					}
				case strings.HasSuffix(name, "file") && value != "" && strings.HasPrefix(value, "/"):
					v, mount := m.volumeAt(w, c, value)
					if file, _ := strings.CutPrefix(value, mount.MountPath+"/"); !slices.Contains(m.filesOf(v), file) {
						t.Errorf("%s: --%s=%s is not mounted", w.name, name, value)
					}
				}
			}
			for _, p := range c.Ports {
				if !listens[fmt.Sprint(p.ContainerPort)] {
					t.Errorf("%s: nothing listens on port %d", w.name, p.ContainerPort)
				}
			}
			if len(listens) != len(c.Ports) {
				t.Errorf("%s listens on %v, and has %d ports", w.name, listens, len(c.Ports))
			}
			if _, mount := m.volumeAt(w, c, "/tmp/file"); writesTemp[c.Args[0]] != "" && mount.MountPath != "/tmp" {
				t.Errorf("%s: no volume for %s", w.name, writesTemp[c.Args[0]])
			}
		}
	}
	return parts
}

// filesOf returns the names of the files in a volume of a configMap or secret.
func (m *manifests) filesOf(v core.Volume) (files []string) {
	if v.Secret == nil || v.Secret.Items == nil {
		return m.files[sourceOf(v)]
	}
	for _, item := range v.Secret.Items {
		if slices.Contains(m.files[v.Secret.SecretName], item.Key) {
			files = append(files, item.Path)
		}
	}
	return files
}

// volumeAt returns the volume, and where it is mounted, of a path in a container.
func (m *manifests) volumeAt(w workload, c core.Container, file string) (volume core.Volume, mount core.VolumeMount) {
	for _, candidate := range c.VolumeMounts {
		if (file == candidate.MountPath || strings.HasPrefix(file, candidate.MountPath+"/")) && len(candidate.MountPath) > len(mount.MountPath) {
			mount = candidate
		}
	}
	for _, v := range w.pod.Spec.Volumes {
		if v.Name == mount.Name {
			volume = v
		}
	}
	return volume, mount
}

func portOf(c core.Container, name string) int32 {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

// portOfPod returns a port of a workload's containers by its name; 0 if no container has it.
func portOfPod(w workload, name string) int32 {
	for _, c := range w.pod.Spec.Containers {
		if port := portOf(c, name); port != 0 {
			return port
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
func TestDeploy_ServicesLeadToTheirContainers(t *testing.T) { readManifests(t).checkServices(t) }

func (m *manifests) checkServices(t *testing.T) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(m.services)) {
		s := m.services[name]
		selected := 0
		for _, w := range m.workloads {
			if !contains(w.pod.Labels, s.Spec.Selector) {
				continue
			}
			selected++
			for _, p := range s.Spec.Ports {
				if portOfPod(w, p.TargetPort.StrVal) == 0 {
					t.Errorf("service %s: %s has no port %q", name, w.name, p.TargetPort.StrVal)
				}
				// A headless service has no proxy that could change the port.
				if s.Spec.ClusterIP == "None" && portOfPod(w, p.TargetPort.StrVal) != p.Port {
					t.Errorf("service %s: port %d is not that of %s", name, p.Port, w.name)
				}
			}
		}
		if selected != 1 {
			t.Errorf("service %s selects %d workloads", name, selected)
		}
	}
}

// Every pod of ferula is selected by one network policy, which names ports that the pod has and pods that exist.
func TestDeploy_NetworkPoliciesSelectEveryPod(t *testing.T) {
	m := readManifests(t)
	selected := map[string]int{}
	for _, policy := range m.policies {
		for _, w := range m.workloads {
			name := w.pod.Labels["app.kubernetes.io/name"]
			s := policy.Spec.PodSelector
			matches := contains(w.pod.Labels, s.MatchLabels)
			for _, e := range s.MatchExpressions {
				matches = matches && e.Operator == "In" && slices.Contains(e.Values, w.pod.Labels[e.Key])
			}
			if !matches {
				continue
			}
			selected[name]++
			for _, rule := range policy.Spec.Ingress {
				for _, p := range rule.Ports {
					if portOfPod(w, p.Port.StrVal) == 0 {
						t.Errorf("%s: %s has no port %s", policy.Name, w.name, p.Port.StrVal)
					}
				}
				for _, from := range rule.From {
					if from.PodSelector != nil && !slices.ContainsFunc(m.workloads, func(w workload) bool { return contains(w.pod.Labels, from.PodSelector.MatchLabels) }) {
						t.Errorf("%s: no pods are %v", policy.Name, from.PodSelector.MatchLabels)
					}
				}
			}
		}
	}
	for _, w := range m.workloads {
		if n := selected[w.pod.Labels["app.kubernetes.io/name"]]; n != 1 {
			t.Errorf("%d network policies select %s", n, w.name)
		}
	}
}

// connectionsOf returns the addresses to which a container of ferula connects.
func connectionsOf(t *testing.T, c core.Container) (addresses []string) {
	t.Helper()
	for _, arg := range c.Args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "--endpoint":
			addresses = append(addresses, strings.TrimPrefix(value, "dns+"))
		case "--query-frontend.downstream-url", "--prometheus.url":
			u, err := url.Parse(value)
			if err != nil {
				t.Fatal(err)
			}
			addresses = append(addresses, u.Host)
		}
	}
	return addresses
}

// The hosts that command lines name are services with these ports, or containers of the pod.
func (m *manifests) checkConnections(t *testing.T, wanted int) {
	t.Helper()
	checked := 0
	for _, w := range m.workloads {
		for _, c := range w.pod.Spec.Containers {
			for _, address := range connectionsOf(t, c) {
				host, port, err := net.SplitHostPort(address)
				if err != nil {
					t.Fatal(err)
				}
				checked++
				found := slices.ContainsFunc(m.services[host].Spec.Ports, func(p core.ServicePort) bool { return fmt.Sprint(p.Port) == port })
				if host == "127.0.0.1" {
					found = slices.ContainsFunc(w.pod.Spec.Containers, func(other core.Container) bool {
						return other.Name != c.Name && slices.ContainsFunc(other.Ports, func(p core.ContainerPort) bool { return fmt.Sprint(p.ContainerPort) == port })
					})
				}
				if !found {
					t.Errorf("%s: %s: no service or container %s with port %s", w.name, address, host, port)
				}
			}
		}
	}
	if checked != wanted {
		t.Errorf("%d connections found, not %d", checked, wanted)
	}
}

func TestDeploy_ConnectionsNameServices(t *testing.T) { readManifests(t).checkConnections(t, 4) }

// kustomize returns what kubectl or kustomize makes of a directory.
func kustomize(t *testing.T, dir string) []byte {
	t.Helper()
	for _, command := range [][]string{{"kubectl", "kustomize"}, {"kustomize", "build"}} {
		if _, err := exec.LookPath(command[0]); err != nil {
			continue
		}
		cmd := exec.Command(command[0], command[1], dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.Len() > 0 { // a warning of something deprecated
			t.Fatalf("%s: %v: %s", dir, err, &stderr)
		}
		return out
	}
	t.Skip("needs kubectl or kustomize")
	return nil
}

func TestDeploy_KustomizeMakesTheManifests(t *testing.T) {
	all := newManifests()
	for _, dir := range kustomizations {
		made := kustomize(t, dir)
		if err := all.addAll(made); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if bytes.Contains(made, []byte("image: "+ferulaImage+"\n")) {
			t.Errorf("%s: the image is not set", dir)
		}
	}
	overlay := newManifests()
	made := kustomize(t, "../../deploy/overlay")
	if err := overlay.addAll(made); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(all.kinds, overlay.kinds) || all.kinds["ConfigMap"] != 2 {
		t.Errorf("the directories have %v, the overlay %v", all.kinds, overlay.kinds)
	}
	overlay.checkConnections(t, 5)
	for _, w := range overlay.workloads {
		for _, c := range w.pod.Spec.Containers {
			if path.Base(path.Dir(c.Image)) == "prometheus" {
				continue
			}
			if c.Image != "registry.example/team/ferula:0.2.0" {
				t.Errorf("%s has the image %s", w.name, c.Image)
			}
			if _, err := parse(t, c.Args...); err != nil {
				t.Errorf("%s: %v", w.name, err)
			}
		}
	}
}

// addAll adds the documents of a stream.
func (m *manifests) addAll(stream []byte) error {
	for _, document := range separator.Split(string(stream), -1) {
		if err := m.add(document); err != nil {
			return err
		}
	}
	return nil
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
		if err := newManifests().add(strings.Replace(document, change[0], change[1], 1)); (err == nil) != (change[0] == "") {
			t.Errorf("%q: %v", change, err)
		}
	}
}
