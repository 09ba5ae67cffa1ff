package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/report"
)

func TestModel_SumsAreThoseOfItsValues(t *testing.T) {
	m := &model{series: 3000, begin: time.Unix(1_700_000_000, 0), interval: time.Minute}
	var count, sum int64
	for n := range m.series {
		if m.labels(n)[0].Value != metricName(7) {
			continue
		}
		for round := range 4 {
			count++
			sum += m.value(n, round)
		}
	}
	if gotCount, gotSum := m.sums(7, 4); count != 3*codes*4 || gotCount != count || gotSum != sum {
		t.Errorf("%d samples with the sum %d, want %d and %d", gotCount, gotSum, count, sum)
	}
}

func TestModel_RoundAtIsTheLastOneBegun(t *testing.T) {
	m := &model{begin: time.Unix(1_700_000_000, 0), interval: time.Minute}
	for round := range 3 {
		for after, want := range map[time.Duration]int{-time.Millisecond: round - 1, 0: round, time.Second: round} {
			if got := m.roundAt(m.at(round).Add(after)); got != want {
				t.Errorf("%s after round %d: %d, want %d", after, round, got, want)
			}
		}
	}
}

func streamOf(l *load, n int, values ...prom.SamplePair) *prom.SampleStream {
	return &prom.SampleStream{Metric: prom.Metric{"code": prom.LabelValue(l.labels(n)[1].Value)}, Values: values}
}

func TestCheckInstant_RefusesValuesOfOtherRounds(t *testing.T) {
	l := &load{model: model{series: 1000, begin: time.Unix(1_700_000_000, 0), interval: time.Minute}}
	result := func(round int) (a prom.Matrix) {
		for _, n := range l.numbers(3, 0) {
			a = append(a, streamOf(l, n, prom.SamplePair{Value: prom.SampleValue(l.value(n, round))}))
		}
		return a
	}
	for acknowledged, accepted := range map[int64]map[int]bool{
		5: {3: false, 4: true, 5: true, 6: false}, // round 5 may be readable, and is not acknowledged yet
		6: {4: false, 5: true, 6: false},
	} {
		for round, ok := range accepted {
			if err := l.checkInstant(result(round), 3, 0, acknowledged, l.at(5).Add(time.Second)); (err == nil) != ok {
				t.Errorf("values of round %d with %d acknowledged: %v", round, acknowledged, err)
			}
		}
	}
}

// At the two ends a window lacks samples: rates there are neither compared nor counted.
func TestCheckRates_CountsOnlyComparedValues(t *testing.T) {
	l := &load{model: model{series: 1000, begin: time.Unix(1_700_000_000, 0), interval: time.Minute}}
	now := l.at(20)
	var a prom.Matrix
	for _, n := range l.numbers(3, 0) {
		rate := float64(l.value(n, 1)-l.value(n, 0)) / l.interval.Seconds()
		one := streamOf(l, n)
		for round := range 21 {
			v := rate
			if round < windows || round > 17 {
				v = -1
			}
			one.Values = append(one.Values, prom.SamplePair{Timestamp: prom.TimeFromUnix(l.at(round).Unix()), Value: prom.SampleValue(v)})
		}
		a = append(a, one)
	}
	if err := l.checkRates(a, 3, []int{0}, now); err != nil {
		t.Fatal(err)
	}
	if got, want := l.compared.Load(), int64(codes*10); got != want { // rounds 7 to 16
		t.Errorf("%d values compared, want %d", got, want)
	}
	a[0].Values[10].Value++
	if err := l.checkRates(a, 3, []int{0}, now); err == nil {
		t.Error("a wrong rate is accepted")
	}
}

func TestUntil_ReturnsAnErrorThatComesAfterTheEnd(t *testing.T) {
	late := func(ctx context.Context) error {
		<-ctx.Done()
		return errWrong
	}
	if err := until(t.Context(), time.Now(), late); !errors.Is(err, errWrong) {
		t.Errorf("%v, want %v", err, errWrong)
	}
	onTime := func(ctx context.Context) error { return proc.Wait(ctx, time.Hour) }
	if err := until(t.Context(), time.Now(), onTime); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := until(ctx, time.Now().Add(time.Hour), onTime); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

func TestWrite_BehindItsScheduleIsAnError(t *testing.T) {
	l := &load{o: options{duration: time.Hour}, model: model{series: 1000, begin: time.Now().Add(-time.Hour), interval: time.Minute}}
	if err := until(t.Context(), l.begin.Add(l.o.duration), l.write); !errors.Is(err, errBehind) {
		t.Errorf("%v, want %v", err, errBehind)
	}
}

// loaded returns a run of a minute with a request of each kind in every second.
func loaded() *load {
	begin := time.Unix(1_700_000_000, 0)
	serve := &proc.Server{}
	l := &load{
		o:       options{duration: time.Minute, interval: 10 * time.Second, series: 2000, queries: 1, pushes: 1},
		cluster: &cluster{frontend: &proc.Server{}, querier: &proc.Server{}, serve: serve},
		model:   model{series: 2000, begin: begin, interval: 10 * time.Second}, applied: time.Minute,
		latencies: map[string][]time.Duration{}, ended: map[string]time.Time{}, memory: map[*proc.Server][]int64{}, cpu: map[*proc.Server]time.Duration{serve: 30 * time.Second},
	}
	for second := range 60 {
		l.memory[serve] = append(l.memory[serve], int64(second+1)*mib)
		d := time.Duration(second+1) * time.Millisecond
		l.latency(pushName, d)
		if second < 40 {
			l.latency("query: instant, 5 series", d)
		}
		if second < 10 {
			l.latency(writeName, d)
		}
	}
	l.ended = map[string]time.Time{pushName: begin.Add(time.Minute), "query: instant, 5 series": begin.Add(time.Minute), writeName: begin.Add(50 * time.Second)}
	return l
}

func TestSection_HasRatesLatenciesMemoryAndNothingLost(t *testing.T) {
	l := loaded()
	l.compared.Store(7)
	got := l.summary(report.Machine{CPU: "a CPU", Cores: 2, Kernel: "6.1", Go: "go1"}, "abc", 0.25, nil, nil).section()
	for _, want := range []string{
		"- 2023-11-14, commit abc, 1m0s\n- a CPU, 2 cores, Linux 6.1, go1\n",
		"| active series, with a sample every 10s | 2000 | 2000 |",
		"| samples by remote write a second | 200.0 | 200.0 |", // 10,000 in 50 s
		"| queries a second | 1.0 | 1.0 |",                     // 40 in the 40 s after the second round
		"| pushes of profiles a second | 1.0 | 1.0 |",
		"| acknowledged samples | 10000 |", "| acknowledged profiles | 60 |", "| values of rates compared with the sent samples | 7 |",
		"| lost, after all of them were requested back | 0 |",
		"| push of a profile | 60 | 30ms | 60ms | 60ms |", "| query: instant, 5 series | 40 | 20ms | 40ms | 40ms |",
		"| RssAnon after | 10s | 20s | 30s | 40s | 50s | 1m0s | greatest | CPU cores |",
		"| serve | 10 MiB | 20 MiB | 30 MiB | 40 MiB | 50 MiB | 60 MiB | 60 MiB | 0.50 |",
		"| the load itself | | | | | | | | 0.25 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	columns := strings.Count("| RssAnon after | 10s | 20s | 30s | 40s | 50s | 1m0s | greatest | CPU cores |", "|")
	_, table, _ := strings.Cut(got, "| RssAnon after")
	for line := range strings.Lines("| RssAnon after" + table) {
		if strings.Count(line, "|") != columns {
			t.Errorf("%d columns, want %d: %s", strings.Count(line, "|"), columns, line)
		}
	}
}

func TestSection_StatesWhatIsLostAndWhatFailed(t *testing.T) {
	l := loaded()
	if got := l.summary(report.Machine{}, "abc", 0, nil, errors.New("a | b\nc")).section(); !strings.Contains(got, "| lost, after all of them were requested back | a / b; c |") {
		t.Error(got)
	}
	got := l.summary(report.Machine{}, "abc", 0, errBehind, nil).section()
	if !strings.Contains(got, "- **ended by an error** after 1m0s: remote write is behind") || !strings.Contains(got, "| not checked |") {
		t.Error(got)
	}
	empty := &load{o: l.o, cluster: &cluster{}, model: l.model, applied: -time.Second}
	if got := empty.summary(report.Machine{}, "abc", 0, errBehind, nil).section(); !strings.Contains(got, "| acknowledged samples | 0 |") || strings.Contains(got, "NaN") {
		t.Error(got)
	}
}

func TestWriteSection_LeavesTheTextAroundIt(t *testing.T) {
	name := filepath.Join(t.TempDir(), "soak.md")
	if err := os.WriteFile(name, []byte("# Title\n\n<!-- begin load -->\nold\n<!-- end load -->\n\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := writeSection(name, "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "# Title\n\n<!-- begin load -->\nnew\n<!-- end load -->\n\nafter\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// make load writes its figures into docs/perf/soak.md, which must have the place for them.
func TestSoakDocument_HasThePlaceForFigures(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "perf", "soak.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, marker := range []string{"<!-- begin load -->", "<!-- end load -->", "<!-- begin soak -->", "<!-- end soak -->"} {
		if strings.Count(string(text), marker+"\n") != 1 {
			t.Errorf("%s occurs %d times", marker, strings.Count(string(text), marker+"\n"))
		}
	}
}
