// Command operator writes what prometheus-operator starts for each Prometheus resource of cases.yml: the arguments, ports
// and probes of each container, and the files that it mounts, with the configuration as prometheus-config-reloader leaves
// it. All are made by the operator's own code. test/e2e starts ferula with them: `make judges` fails if they change.
//
//	go run . -o ../e2e/testdata/operator
package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	_ "unsafe" // for go:linkname

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	monitoringv1alpha1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	"github.com/prometheus-operator/prometheus-operator/pkg/assets"
	"github.com/prometheus-operator/prometheus-operator/pkg/operator"
	prompkg "github.com/prometheus-operator/prometheus-operator/pkg/prometheus"
	_ "github.com/prometheus-operator/prometheus-operator/pkg/prometheus/server"
	"github.com/prometheus-operator/prometheus-operator/pkg/webconfig"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"
)

// The operator does not export these. They are called as its own reconciliation calls them.

//go:linkname makeStatefulSet github.com/prometheus-operator/prometheus-operator/pkg/prometheus/server.makeStatefulSet
func makeStatefulSet(name string, p *monitoringv1.Prometheus, config prompkg.Config, cg *prompkg.ConfigGenerator,
	ruleConfigMaps []string, inputHash string, shard int32, tls *operator.ShardedSecret) (*appsv1.StatefulSet, error)

//go:linkname makeThanosSecret github.com/prometheus-operator/prometheus-operator/pkg/prometheus/server.buildPrometheusHTTPClientConfigSecret
func makeThanosSecret(p *monitoringv1.Prometheus) (*corev1.Secret, error)

//go:embed cases.yml
var casesText []byte

type resource struct {
	Name     string
	Spec     monitoringv1.PrometheusSpec
	Secrets  map[string]map[string]string
	Monitors bool
}

// started is what the operator starts: a file of the output. test/e2e has the same structure.
type started struct {
	Versions   []string          `json:"versions"` // spec.version, for each of which it is the same
	Containers []container       `json:"containers"`
	Files      map[string]string `json:"files"`
}

type container struct {
	Name    string            `json:"name"`
	Command []string          `json:"command,omitempty"`
	Args    []string          `json:"args"`
	Ports   map[string]int32  `json:"ports"`
	Probes  map[string]*probe `json:"probes,omitempty"`
	Mounts  []string          `json:"mounts"`
}

type probe struct {
	Path   string   `json:"path,omitempty"`
	Port   string   `json:"port,omitempty"`
	Scheme string   `json:"scheme,omitempty"`
	Exec   []string `json:"exec,omitempty"`
}

func main() {
	out := flag.String("o", "", "directory to write; its files are replaced")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	var resources []resource
	if err := yaml.UnmarshalStrict(casesText, &resources); err != nil || out == "" {
		return errors.Join(err, fmt.Errorf("-o is %q", out))
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	for _, r := range resources {
		s, err := start(r, r.Spec.Version)
		if err == nil {
			err = write(out, r.Name, s)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	// Every version that the operator supports, and the one whose API ferula has. Neighbours that start the same share a file.
	var file string
	var last *started
	for _, version := range append(slices.Clone(operator.PrometheusCompatibilityMatrix), "v3.15.0") {
		s, err := start(resource{}, version)
		if err != nil {
			return fmt.Errorf("version %s: %w", version, err)
		}
		if last != nil && reflect.DeepEqual(s.Containers, last.Containers) && reflect.DeepEqual(s.Files, last.Files) {
			s.Versions = append(last.Versions, version)
		} else {
			file = "version-" + version
		}
		last = s
		if err := write(out, file, s); err != nil {
			return err
		}
	}
	return nil
}

func write(dir, name string, s *started) error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644)
}

// rules is the name of the one ConfigMap of rules.
const rules = "prometheus-it-rulefiles-0"

// start returns what the operator starts for the first shard of a resource.
func start(r resource, version string) (*started, error) {
	ctx := context.Background()
	p := &monitoringv1.Prometheus{ObjectMeta: metav1.ObjectMeta{Name: "it", Namespace: "default"}, Spec: *r.Spec.DeepCopy()}
	// The API server sets these, which the definition of the resource names as defaults.
	p.Spec.ScrapeInterval, p.Spec.EvaluationInterval = cmp.Or(p.Spec.ScrapeInterval, "30s"), cmp.Or(p.Spec.EvaluationInterval, "30s")
	p.Spec.Version = version
	secrets := map[string]map[string][]byte{}
	var objects []any
	for name, data := range r.Secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string][]byte{}}
		for key, text := range data {
			secret.Data[key] = []byte(text)
		}
		secrets[name], objects = secret.Data, append(objects, secret)
	}
	store := assets.NewTestStoreBuilder(objects...)
	cg, err := prompkg.NewConfigGenerator(slog.New(slog.DiscardHandler), p, prompkg.WithEndpointSliceSupport())
	if err != nil {
		return nil, err
	}
	for _, remote := range p.Spec.RemoteWrite {
		if err := store.AddBasicAuth(ctx, "default", remote.BasicAuth); err != nil {
			return nil, err
		}
	}
	m := monitors{}
	if r.Monitors {
		if err := yaml.UnmarshalStrict([]byte(monitorsText), &m); err != nil {
			return nil, err
		}
	}
	config, err := cg.GenerateServerConfiguration(p, m.ServiceMonitors, m.PodMonitors, m.Probes, m.ScrapeConfigs, store, nil, nil, nil,
		[]string{rules})
	if err != nil {
		return nil, err
	}
	client := fake.NewClientset()
	tls, err := operator.ReconcileShardedSecret(ctx, store.TLSAssets(), client, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: prompkg.TLSAssetsSecretName(p), Namespace: "default"}})
	if err != nil {
		return nil, err
	}
	// as of operator/cmd/operator/main.go
	set, err := makeStatefulSet("prometheus-it", p, prompkg.Config{LocalHost: "localhost",
		PrometheusDefaultBaseImage: operator.DefaultPrometheusBaseImage, ThanosDefaultBaseImage: operator.DefaultThanosBaseImage,
		ReloaderConfig: operator.ContainerConfig{Image: operator.DefaultPrometheusConfigReloaderImage},
	}, cg, []string{rules}, "", 0, tls)
	if err != nil {
		return nil, err
	}

	var fields monitoringv1.WebConfigFileFields
	if p.Spec.Web != nil {
		fields = p.Spec.Web.WebConfigFileFields
	}
	web, err := webconfig.New(prompkg.WebConfigDir, prompkg.WebConfigSecretName(p), fields)
	if err != nil {
		return nil, err
	}
	inCluster := client.CoreV1().Secrets("default")
	thanos, err := makeThanosSecret(p)
	if err != nil {
		return nil, err
	}
	secrets[thanos.Name] = thanos.Data
	if err := web.CreateOrUpdateWebConfigSecret(ctx, inCluster, &corev1.Secret{}); err != nil {
		return nil, err
	}
	created, err := inCluster.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, secret := range created.Items {
		secrets[secret.Name] = secret.Data
	}
	expanded := map[string][]byte{prompkg.ConfigEnvsubstFilename: expand(config)}
	return describe(cmp.Or(version, operator.DefaultPrometheusVersion), set.Spec.Template.Spec, secrets, expanded)
}

var variable = regexp.MustCompile(`\$\(\w+\)`)

// expand replaces the environment variables as prometheus-config-reloader does in the first pod.
func expand(config []byte) []byte {
	return variable.ReplaceAllFunc(config, func(name []byte) []byte {
		return []byte(map[string]string{"$(POD_NAME)": "prometheus-it-0", "$(SHARD)": "0"}[string(name)])
	})
}

// describe returns the containers that run a peer, and their files.
func describe(version string, pod corev1.PodSpec, secrets map[string]map[string][]byte, config map[string][]byte) (*started, error) {
	s := &started{Versions: []string{version}, Files: map[string]string{}}
	for _, c := range pod.Containers {
		if c.Name == "config-reloader" {
			continue
		}
		d := container{Name: c.Name, Command: c.Command, Args: slices.Clone(c.Args), Ports: map[string]int32{}, Probes: map[string]*probe{}}
		for _, env := range c.Env { // the kubelet expands them
			for i := range d.Args {
				if from := env.ValueFrom; from != nil && from.SecretKeyRef != nil {
					d.Args[i] = strings.ReplaceAll(d.Args[i], "$("+env.Name+")", string(secrets[from.SecretKeyRef.Name][from.SecretKeyRef.Key]))
				}
			}
		}
		for _, port := range c.Ports {
			d.Ports[port.Name] = port.ContainerPort
		}
		for name, of := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
			switch {
			case of == nil:
			case of.Exec != nil:
				d.Probes[name] = &probe{Exec: of.Exec.Command}
			default:
				d.Probes[name] = &probe{Path: of.HTTPGet.Path, Port: of.HTTPGet.Port.String(), Scheme: string(of.HTTPGet.Scheme)}
			}
		}
		for _, mount := range c.VolumeMounts {
			d.Mounts = append(d.Mounts, mount.MountPath)
			i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
			if i < 0 { // a claim
				continue
			}
			var data map[string][]byte
			switch v := pod.Volumes[i]; {
			case v.Secret != nil:
				if data = secrets[v.Secret.SecretName]; data == nil {
					return nil, fmt.Errorf("no secret %s for %s", v.Secret.SecretName, mount.MountPath)
				}
			case v.ConfigMap != nil && v.ConfigMap.Name == rules:
				data = map[string][]byte{"default-rules.yaml": []byte("groups: [{name: a, rules: [{record: b, expr: vector(1)}]}]\n")}
			case v.Name == "config-out":
				data = config
			}
			for key, content := range data {
				switch name := path.Join(mount.MountPath, key); {
				case mount.SubPath == "":
					s.Files[name] = string(content)
				case mount.SubPath == key:
					s.Files[mount.MountPath] = string(content)
				}
			}
		}
		slices.Sort(d.Mounts)
		s.Containers = append(s.Containers, d)
	}
	return s, nil
}

// monitors are resources that select targets, by namespace and name.
type monitors struct {
	ServiceMonitors map[string]*monitoringv1.ServiceMonitor
	PodMonitors     map[string]*monitoringv1.PodMonitor
	Probes          map[string]*monitoringv1.Probe
	ScrapeConfigs   map[string]*monitoringv1alpha1.ScrapeConfig
}

const monitorsText = `
serviceMonitors:
  default/service:
    metadata: {name: service, namespace: default}
    spec:
      selector: {matchLabels: {app: a}}
      endpoints: [{port: web, interval: 30s, honorLabels: true, relabelings: [{targetLabel: b, replacement: c}], metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: 'd.*'}]}]
podMonitors:
  default/pod:
    metadata: {name: pod, namespace: default}
    spec: {selector: {matchLabels: {app: a}}, podMetricsEndpoints: [{port: web, path: /m, scheme: http}], sampleLimit: 10}
probes:
  default/probe:
    metadata: {name: probe, namespace: default}
    spec: {prober: {url: '127.0.0.1:1'}, module: http_2xx, targets: {staticConfig: {static: [a.example], labels: {e: f}}}}
scrapeConfigs:
  default/static:
    metadata: {name: static, namespace: default}
    spec: {staticConfigs: [{targets: ['127.0.0.1:1'], labels: {g: h}}], metricsPath: /metrics, scrapeInterval: 1m}
`
