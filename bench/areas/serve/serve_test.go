package serve

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/ferula-io/ferula/bench/blocks"
)

func TestFleet_EveryTargetHasItsPage(t *testing.T) {
	f, err := newFleet(3, 40, pages{shuffled: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	path := filepath.Join(t.TempDir(), "targets.json")
	if err := f.writeList(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Targets []string
		Labels  map[string]string
	}
	if err := json.Unmarshal(text, &groups); err != nil || len(groups) != 3 {
		t.Fatalf("%d groups, %v", len(groups), err)
	}
	for _, g := range groups {
		response, err := http.Get("http://" + g.Targets[0] + g.Labels["__metrics_path__"])
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(response.Body)
		response.Body.Close()
		seen := map[string]bool{}
		for line := range strings.Lines(string(page)) {
			name, _, _ := strings.Cut(line, "} ")
			seen[name] = true
		}
		if err != nil || len(seen) != 40 {
			t.Errorf("target %s: %d series, %v", g.Labels["target"], len(seen), err)
		}
	}
	response, err := http.Get("http://" + groups[0].Targets[0] + "/target/3")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("a target that does not exist: %s", response.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestLayouts_AreOpenMetricsWithTheSamplesThatAreExpected(t *testing.T) {
	f, err := newFleet(3, 0, pages{real: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	samples, exemplars := 0, 0
	for i, layout := range f.layouts {
		page := f.page(layout, i)
		parser, err := textparse.New(page, "application/openmetrics-text; version=1.0.0", labels.NewSymbolTable(), textparse.ParserOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for entry, err := parser.Next(); !errors.Is(err, io.EOF); entry, err = parser.Next() {
			if err != nil {
				t.Fatalf("layout %d: %v", i, err)
			}
			if entry == textparse.EntrySeries {
				samples++
			}
			if parser.Exemplar(&exemplar.Exemplar{}) {
				exemplars++
			}
		}
	}
	if samples != f.samples() || exemplars == 0 {
		t.Errorf("%d samples, want %d; %d exemplars", samples, f.samples(), exemplars)
	}
}

func TestRuleFile_EveryRuleSelectsOnePod(t *testing.T) {
	b := &bench{size: sizeOf(true)}
	text := string(b.ruleFile())
	spec := blocks.Spec{Metric: "bench_metric", Series: b.size.rules * b.size.perRule, PerPod: b.size.perRule}
	pods := map[string]int{}
	for i := range spec.Series {
		pods[spec.Labels(i).Get("pod")]++
	}
	if len(pods) != b.size.rules {
		t.Fatalf("%d pods for %d rules", len(pods), b.size.rules)
	}
	for pod, n := range pods {
		if n != b.size.perRule || strings.Count(text, `pod=\"`+pod+`\"`) != 1 {
			t.Errorf("pod %s has %d series and %d rules", pod, n, strings.Count(text, `pod=\"`+pod+`\"`))
		}
	}
}
