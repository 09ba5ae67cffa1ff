package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The module has no packages. The sum is what go.sum would have.
const (
	openMetricsModule = "github.com/prometheus/OpenMetrics"
	openMetricsAt     = "v1.0.1-0.20250131122238-3bb328ab04d2"
	openMetricsSum    = "h1:jDwTIthYOqcsTolyUTgX5AvfcIqgWHNcw771nLLI2uM="
)

// scraped is what a server made of a page.
type scraped struct{ health, lastError, samples string }

// openMetrics lets both servers scrape the parser cases of OpenMetrics. cases counts pages that the server accepts or
// rejects as the case says, same counts pages with the same health, error and samples on both servers.
func openMetrics(ferula, prometheus, dir string) (cases, same row, err error) {
	cases = row{judge: openMetricsModule + ": parser cases as they say", version: openMetricsAt}
	same = row{judge: openMetricsModule + ": parser cases, scraped by serve as by Prometheus (health, error, samples)",
		version: openMetricsAt}
	parses, suite, err := openMetricsCases()
	if err != nil {
		return cases, same, err
	}
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, err := os.ReadFile(filepath.Join(suite, filepath.Base(r.URL.Path), "metrics"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		_, _ = w.Write(page)
	}))
	defer pages.Close()
	// Times of the cases are decades apart. One head cannot hold them all.
	text := "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: cases\n" +
		"  scrape_protocols: [OpenMetricsText1.0.0]\n  honor_timestamps: false\n  static_configs:\n"
	for _, name := range slices.Sorted(maps.Keys(parses)) {
		text += fmt.Sprintf("  - {targets: [%q], labels: {case: %q, __metrics_path__: %q}}\n",
			strings.TrimPrefix(pages.URL, "http://"), name, "/"+name)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return cases, same, err
	}
	file := filepath.Join(dir, "cases.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return cases, same, err
	}
	var sides [2]map[string]scraped
	for i, command := range [][]string{{ferula, "serve", "--grpc-address=127.0.0.1:0"}, {prometheus}} {
		data := filepath.Join(dir, fmt.Sprint(i))
		s, err := start(command[0], append(command[1:], "--config.file="+file, "--storage.tsdb.path="+data)...)
		if err != nil {
			return cases, same, err
		}
		sides[i], err = scrapes(s.url, len(parses))
		s.stop()
		if err != nil {
			return cases, same, fmt.Errorf("%q: %w", command, err)
		}
	}
	ours, theirs, equal := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for name, parse := range parses {
		a, b := sides[0][name], sides[1][name]
		ours[name], theirs[name], equal[name] = (a.health == "up") == parse, (b.health == "up") == parse, a == b
		if a != b {
			fmt.Fprintf(os.Stderr, "%s:\nferula     %q\nPrometheus %q\n", name, a, b)
		}
	}
	cases.count(ours, theirs)
	same.count(equal, nil)
	return cases, same, nil
}

// openMetricsCases returns which pages a parser has to accept, by name, and the directory of all cases.
func openMetricsCases() (map[string]bool, string, error) {
	out, err := exec.Command("go", "mod", "download", "-json", openMetricsModule+"@"+openMetricsAt).Output()
	if err != nil {
		return nil, "", fmt.Errorf("download %s: %w: %s", openMetricsModule, err, out)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, "", err
	}
	if module.Sum != openMetricsSum {
		return nil, "", fmt.Errorf("%s has the sum %s, want %s", openMetricsModule, module.Sum, openMetricsSum)
	}
	suite := filepath.Join(module.Dir, "tests/testdata/parsers")
	dirs, err := os.ReadDir(suite)
	if err != nil {
		return nil, "", err
	}
	parses := map[string]bool{}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(suite, dir.Name(), "test.json"))
		if err != nil {
			return nil, "", err
		}
		var test struct{ ShouldParse *bool }
		if err := json.Unmarshal(text, &test); err != nil {
			return nil, "", fmt.Errorf("%s/test.json: %w", dir.Name(), err)
		}
		if test.ShouldParse == nil {
			return nil, "", fmt.Errorf("%s/test.json does not say shouldParse", dir.Name())
		}
		parses[dir.Name()] = *test.ShouldParse
	}
	return parses, suite, nil
}

// vector is the response to an instant query.
type vector struct {
	Data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
}

func instant(server, query string) (v vector, err error) {
	return v, get(server+"/api/v1/query?"+url.Values{"query": {query}}.Encode(), &v)
}

// scrapes waits until the server has stored two scrapes of each page, because a scrape of an unchanged page takes
// another path, and returns what the server made of the pages, by name of the case.
func scrapes(server string, pages int) (map[string]scraped, error) {
	for range 600 {
		v, err := instant(server, `count_over_time(up{case!=""}[5m]) >= 2`)
		if err != nil {
			return nil, err
		}
		if len(v.Data.Result) == pages {
			return afterScrapes(server)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, fmt.Errorf("%d pages are not scraped twice within a minute", pages)
}

// afterScrapes returns health and error of each page, and its series with their values, except those that differ
// between scrapes.
func afterScrapes(server string) (map[string]scraped, error) {
	var targets struct {
		Data struct {
			ActiveTargets []struct {
				Labels            map[string]string
				Health, LastError string
			}
		}
	}
	if err := get(server+"/api/v1/targets?state=active", &targets); err != nil {
		return nil, err
	}
	v, err := instant(server, `{case!="",__name__!~"scrape_(duration_seconds|series_added)"}`)
	if err != nil {
		return nil, err
	}
	lines := map[string][]string{}
	for _, series := range v.Data.Result {
		name := series.Metric["case"]
		lines[name] = append(lines[name], fmt.Sprintf("%q %v", series.Metric, series.Value[1]))
	}
	all := map[string]scraped{}
	for _, target := range targets.Data.ActiveTargets {
		name := target.Labels["case"]
		samples := strings.Join(slices.Sorted(slices.Values(lines[name])), "\n")
		all[name] = scraped{health: target.Health, lastError: target.LastError, samples: samples}
	}
	return all, nil
}

func get(url string, to any) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(to)
}
