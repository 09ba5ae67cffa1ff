package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// rulesScenario is a server that evaluates rules, sends alerts to an Alertmanager and
// samples to another server by remote write. Both servers are killed.
//
//	samples    each reaches the receiver once that is up
//	recorded   a recorded sample that a response had stays in responses of both servers, and its
//	           value is one that was written
//	pending    the time for which an alert has been pending never decreases
//	firing     an alert whose condition holds is never resolved
type rulesScenario struct {
	env    *environment
	rng    *rand.Rand
	sender *server
	far    *server // the receiver; in its model, samples that the receiver has returned are acknowledged
	am     *stubAlertmanager

	beganMS  int64
	lifeMS   int64   // the sender was started before this timestamp
	lastMS   int64   // the greatest timestamp written
	pending  samples // acknowledged by the sender, not yet returned by the receiver
	recorded samples // recorded samples that the sender has returned
	arrived  samples // recorded samples that the receiver has returned
	more     bool    // the second group of rules is configured
}

// Rules of the scenario. Names of recorded series begin with rule:, which distinguishes them from
// written series.
const (
	ruleGroups = `groups:
- name: levels
  interval: 1s
  rules:
  - {record: "rule:level", expr: 'last_over_time(sim_value{kind="level"}[1h])'}
  - {alert: Level, expr: 'rule:level >= 0', for: 2s}
- name: slow
  interval: 1s
  rules:
  - {alert: Slow, expr: vector(1), for: 1h}
`
	moreRules = `- name: more
  interval: 1s
  rules:
  - {record: "rule:more", expr: 'rule:level'}
`
	faultyRules    = "groups: [{name: faulty, rules: [{record: a, expr: 'sum('}]}]\n"
	recordedSeries = `{__name__=~"rule:.+"}`
)

// stubAlertmanager records which alerts fired, and whether an alert was resolved.
type stubAlertmanager struct {
	*httptest.Server
	mu       sync.Mutex
	fails    bool
	fired    map[string]bool
	resolved string
}

func newStubAlertmanager() *stubAlertmanager {
	a := &stubAlertmanager{fired: map[string]bool{}}
	a.Server = httptest.NewServer(a)
	return a
}

// ServeHTTP implements http.Handler.
func (a *stubAlertmanager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var alerts []struct {
		Labels map[string]string
		EndsAt time.Time
	}
	err := json.NewDecoder(r.Body).Decode(&alerts)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || a.fails {
		http.Error(w, fmt.Sprint("cannot receive alerts: ", err), http.StatusInternalServerError)
		return
	}
	for _, alert := range alerts {
		name := alert.Labels["alertname"]
		// The end time of a firing alert is 40 s after its evaluation: four times the resend delay.
		if alert.EndsAt.Before(time.Now()) && a.resolved == "" {
			a.resolved = fmt.Sprintf("%s, at %s", name, alert.EndsAt)
		}
		a.fired[name] = true
	}
}

// state returns whether the alert Level was received, and the name of a resolved alert.
func (a *stubAlertmanager) state() (fired bool, resolved string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fired["Level"], a.resolved
}

func newRulesScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	far, err := newServer(e, filepath.Join(dir, "receiver"), serveConfig{retentionFile: "1y"})
	if err != nil {
		return nil, err
	}
	w := &rulesScenario{env: e, rng: rng, far: far, am: newStubAlertmanager(), pending: samples{}, recorded: samples{}, arrived: samples{}}
	cfg := serveConfig{retentionFile: "1y", flags: []string{"--rules.alert.for-grace-period=0s", "--rules.alert.resend-delay=10s"}}
	cfg.more = fmt.Sprintf(`rule_files: [rules.yml]
alerting: {alertmanagers: [{static_configs: [{targets: ['%s']}]}]}
remote_write:
- url: %s/api/v1/write
  protobuf_message: %s
  queue_config: {batch_send_deadline: 100ms, min_backoff: 10ms, max_backoff: 200ms, max_shards: %d}
  write_relabel_configs: [{source_labels: [__name__], regex: 'sim_.+|rule:.+', action: keep}]
`, strings.TrimPrefix(w.am.URL, "http://"), far.base(), pick(rng, "prometheus.WriteRequest", "io.prometheus.write.v2.Request"), pick(rng, 1, 4))
	if rng.IntN(2) == 0 {
		cfg.flags = append(cfg.flags, "--enable-feature=concurrent-rule-eval")
	}
	w.sender, err = newServer(e, filepath.Join(dir, "sender"), cfg)
	return w, err
}

func (w *rulesScenario) start() error {
	w.beganMS = time.Now().UnixMilli()
	w.sender.mintMS, w.far.mintMS = w.beganMS, w.beganMS
	if err := w.writeRules(ruleGroups); err != nil {
		return err
	}
	if err := w.far.run(); err != nil {
		return err
	}
	if err := w.runSender(); err != nil {
		return err
	}
	if err := w.write(rand.New(rand.NewPCG(1, 1))); err != nil {
		return err
	}
	// An alert that begins again is active for up to three seconds at its first sample.
	return w.sender.proc.until("an alert to be active for long enough", func() (bool, error) {
		got, err := w.read(w.sender, `ALERTS_FOR_STATE{alertname="Slow"}`)
		for _, points := range got {
			for ms, since := range points {
				if float64(ms)/1000-since >= 6 {
					return true, err
				}
			}
		}
		return false, err
	})
}

func (w *rulesScenario) stop() error {
	defer w.am.Close()
	if err := w.sender.stop(); err != nil {
		return err
	}
	return w.far.stop()
}

func (w *rulesScenario) writeRules(text string) error {
	return os.WriteFile(filepath.Join(w.sender.dir, "rules.yml"), []byte(text), 0o600)
}

// rules returns the current groups of rules.
func (w *rulesScenario) rules() string {
	if w.more {
		return ruleGroups + moreRules
	}
	return ruleGroups
}

func (w *rulesScenario) runSender() error {
	if err := w.sender.run(); err != nil {
		return err
	}
	w.lifeMS = time.Now().UnixMilli()
	return nil
}

func (w *rulesScenario) steps() []step {
	p := plan{rng: w.rng}
	for range 4 + w.rng.IntN(5) {
		switch w.rng.IntN(8) {
		case 0:
			p.add("write", w.write)
		case 1, 2:
			p.add("kill the receiver, write, start it", w.killReceiver)
		case 3:
			p.add("write while the receiver stalls", w.stallReceiver)
		case 4, 5:
			p.add("kill the sender while a write runs, start it", w.killSender)
		case 6:
			p.add("stop the sender, start it", w.stopSender)
		case 7:
			p.do("reload with other rules", w.reload)
		}
		switch w.rng.IntN(4) {
		case 0:
			p.do("reload with a faulty rule", w.reloadFaulty)
		case 1:
			p.add("write while the Alertmanager fails", w.failAlertmanager)
		}
	}
	return p.list
}

// write writes some samples of now to the sender.
func (w *rulesScenario) write(rng *rand.Rand) error {
	points := map[int64]float64{}
	w.lastMS = max(w.lastMS+1, time.Now().UnixMilli())
	for range 5 + rng.IntN(20) {
		w.lastMS++
		points[w.lastMS] = float64(rng.IntN(1000))
	}
	series := map[string]string{"kind": "level"}
	if err := w.sender.put(series, points); err != nil {
		return err
	}
	// From now on the receiver may have these samples, also those without an acknowledgement.
	key := seriesKey(series)
	for ms, v := range points {
		w.far.model.maybe.put(key, ms, v)
		if w.sender.model.acked.has(key, ms, v) {
			w.pending.put(key, ms, v)
		}
	}
	return nil
}

func (w *rulesScenario) killReceiver(rng *rand.Rand) error {
	w.far.kill()
	for range 1 + rng.IntN(3) {
		if err := w.write(rng); err != nil {
			return err
		}
	}
	return w.far.run()
}

func (w *rulesScenario) stallReceiver(rng *rand.Rand) error {
	process := w.far.proc.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := w.write(rng)
	if resumed := process.Signal(syscall.SIGCONT); err == nil {
		err = resumed
	}
	return err
}

// killSender kills the sender while it receives samples. The receiver gets what it does not have after the restart.
func (w *rulesScenario) killSender(rng *rand.Rand) error {
	done := make(chan error, 1)
	writer := rand.New(rand.NewPCG(rng.Uint64(), 0))
	go func() { done <- w.write(writer) }()
	time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
	w.sender.kill()
	if err := <-done; err != nil {
		return err
	}
	if err := w.runSender(); err != nil {
		return err
	}
	return w.write(rng)
}

// stopSender stops the sender, which sends all samples before it exits.
func (w *rulesScenario) stopSender(rng *rand.Rand) error {
	if err := w.write(rng); err != nil {
		return err
	}
	if err := w.sender.stop(); err != nil {
		return err
	}
	return w.runSender()
}

// reload adds the second group of rules, or removes it.
func (w *rulesScenario) reload() error {
	w.more = !w.more
	if err := w.writeRules(w.rules()); err != nil {
		return err
	}
	if err := w.sender.proc.reload(); err != nil {
		return err
	}
	return w.sender.proc.until("the reload", func() (bool, error) {
		page, _, err := api(w.env.ctx, w.env.client, w.sender.base()+"/api/v1/rules", nil, nil)
		return strings.Contains(string(page), `"name":"more"`) == w.more, err
	})
}

// reloadFaulty reloads an invalid configuration, which must be refused, and then the valid one.
func (w *rulesScenario) reloadFaulty() error {
	reload := func(text, result string) error {
		if err := w.writeRules(text); err != nil {
			return err
		}
		if err := w.sender.proc.reload(); err != nil {
			return err
		}
		return w.sender.proc.until("the result of a reload", func() (bool, error) {
			page, _, err := api(w.env.ctx, w.env.client, w.sender.base()+"/metrics", nil, nil)
			return strings.Contains(string(page), "\nprometheus_config_last_reload_successful "+result+"\n"), err
		})
	}
	if err := reload(faultyRules, "0"); err != nil {
		return err
	}
	return reload(w.rules(), "1")
}

func (w *rulesScenario) failAlertmanager(rng *rand.Rand) error {
	set := func(fails bool) {
		w.am.mu.Lock()
		defer w.am.mu.Unlock()
		w.am.fails = fails
	}
	set(true)
	defer set(false)
	return w.write(rng)
}

// read returns all samples of a selector since the start of the scenario.
func (w *rulesScenario) read(from *server, selector string) (samples, error) {
	got, warnings, err := queryRaw(w.env.ctx, w.env.client, from.base(), selector, w.beganMS-1000, time.Now().Add(time.Minute).UnixMilli(), nil, nil)
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("unexpected warnings: %q", warnings)
	}
	return got, err
}

// missing returns the first sample of want, from a timestamp on, that is not in got; "" if there
// is none.
func missing(want, got samples, sinceMS int64) string {
	for series, points := range want {
		for ms, v := range points {
			if ms >= sinceMS && !got.has(series, ms, v) {
				return fmt.Sprintf("{%s} @%d %v", series, ms, v)
			}
		}
	}
	return ""
}

func (w *rulesScenario) check() error {
	for _, srv := range []*server{w.sender, w.far} {
		if err := srv.proc.unexpectedExit(); err != nil {
			return err
		}
	}
	if err := w.sender.compareAll(nil, false); err != nil {
		return err
	}
	if err := w.checkEvaluation(); err != nil {
		return err
	}
	if err := w.checkPending(); err != nil {
		return err
	}
	if err := w.sender.proc.until("the alert to reach the Alertmanager", func() (bool, error) { fired, _ := w.am.state(); return fired, nil }); err != nil {
		return err
	}
	if _, resolved := w.am.state(); resolved != "" {
		return fmt.Errorf("an alert whose condition holds was resolved: %s", resolved)
	}
	return w.checkReceiver()
}

// checkEvaluation waits until the sender has evaluated its rules since its start, and
// compares the recorded samples.
func (w *rulesScenario) checkEvaluation() error {
	var got samples
	for _, selector := range []string{recordedSeries, `ALERTS_FOR_STATE{alertname="Slow"}`, `ALERTS_FOR_STATE{alertname="Level"}`} {
		if err := w.sender.proc.until("samples of "+selector+" since the last start", func() (bool, error) {
			all, err := w.read(w.sender, selector)
			if selector == recordedSeries {
				got = all
			}
			for _, points := range all {
				for ms := range points {
					if ms >= w.lifeMS {
						return true, err
					}
				}
			}
			return false, err
		}); err != nil {
			return err
		}
	}
	if lost := missing(w.recorded, got, 0); lost != "" {
		return fmt.Errorf("the recorded sample %s is missing", lost)
	}
	written := map[float64]bool{}
	for _, from := range []samples{w.sender.model.acked, w.sender.model.maybe} {
		for _, points := range from {
			for _, v := range points {
				written[v] = true
			}
		}
	}
	for series, points := range got {
		for ms, v := range points {
			if !written[v] {
				return fmt.Errorf("the rule has recorded {%s} @%d %v, which was never written", series, ms, v)
			}
		}
	}
	w.recorded = got
	w.env.proved(got.count())
	return nil
}

// checkPending checks that no alert was reset. The value of an ALERTS_FOR_STATE sample is the time
// at which the alert became active. It must not be later than the value of the previous sample,
// except by the time for which the server was down.
func (w *rulesScenario) checkPending() error {
	got, err := w.read(w.sender, `ALERTS_FOR_STATE`)
	if err != nil {
		return err
	}
	for series, points := range got {
		before := 0.0
		for _, ms := range sortedKeys(points) {
			active := float64(ms)/1000 - points[ms]
			if active < before-1.5 { // seconds; values are whole seconds
				return fmt.Errorf("{%s} is active for %.1fs @%d, but was for %.1fs before", series, active, ms, before)
			}
			before = active
		}
	}
	w.env.proved(got.count())
	return nil
}

// checkReceiver waits until the receiver has all acknowledged and all recorded samples,
// and compares all its samples.
func (w *rulesScenario) checkReceiver() error {
	return w.sender.proc.until("samples at the receiver", func() (bool, error) {
		got, err := w.read(w.far, everything)
		if err != nil {
			return false, err
		}
		rules, err := w.read(w.far, recordedSeries)
		if err != nil {
			return false, err
		}
		for what, lost := range map[string]string{
			"acknowledged": missing(w.pending, got, 0), "recorded": missing(w.recorded, rules, w.lifeMS), "received": missing(w.arrived, rules, 0),
		} {
			if lost != "" {
				return false, fmt.Errorf("the receiver lacks the %s sample %s", what, lost)
			}
		}
		for series, points := range w.pending {
			for ms, v := range points {
				w.far.model.acked.put(series, ms, v)
			}
		}
		w.pending, w.arrived = samples{}, rules
		w.env.proved(got.count() + rules.count())
		return true, w.far.model.check(got, w.beganMS-1000, time.Now().Add(time.Hour).UnixMilli(), 0)
	})
}
