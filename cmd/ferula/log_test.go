package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/metrics"
)

// logTo makes a logger as a command does, whose lines go to the returned buffer.
func logTo(t *testing.T, f logFlags) *bytes.Buffer {
	t.Helper()
	before, flags := slog.Default(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
	})
	var lines bytes.Buffer
	if _, _, err := f.loggerTo(&lines); err != nil {
		t.Fatal(err)
	}
	return &lines
}

// scrapeOfPanic renders a page with a callback that panics. The package metrics logs an error, once for each name.
func scrapeOfPanic(name string) {
	set := metrics.NewSet()
	set.NewGauge(name, func() float64 { panic("no value") })
	set.WritePrometheus(io.Discard)
}

// The package metrics, and other libraries, write to the standard log. Such a line is one of the command's log, with its format and level.
func TestLogFlags_LinesOfTheStandardLogHaveFormatAndLevel(t *testing.T) {
	lines := logTo(t, logFlags{Level: "info", Format: "logfmt"})
	scrapeOfPanic("broken")
	log.Print("WARN: metrics: a family has \"quotes\"")
	log.Print("http: a fault\nof two lines\n")
	slog.Info("of a library", "key", 1)
	slog.Debug("of a library")
	got := strings.Split(strings.TrimSpace(lines.String()), "\n")
	if len(got) != 4 {
		t.Fatalf("%d lines: %q", len(got), got)
	}
	for i, parts := range [][]string{
		{"level=ERROR source=values.go:", `msg="metrics: the callback of \"broken\" panicked`},
		{"level=WARN source=log_test.go:", `msg="metrics: a family has \"quotes\""`},
		{"level=WARN source=log_test.go:", `msg="http: a fault\nof two lines"`},
		{"level=INFO source=log_test.go:", `msg="of a library" key=1`},
	} {
		for _, part := range append(parts, "time=2") {
			if !strings.Contains(got[i], part) {
				t.Errorf("%q does not contain %q", got[i], part)
			}
		}
	}
	lines = logTo(t, logFlags{Level: "error", Format: "json"})
	log.Print("WARN: metrics: a warning")
	scrapeOfPanic("broken_too")
	var line struct{ Level, Msg, Time string }
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Level != "ERROR" || line.Time == "" || !strings.HasPrefix(line.Msg, "metrics: the callback of") {
		t.Errorf("%q: %v", lines, err)
	}
}

// A reload may change the level.
func TestLogFlags_LinesOfTheStandardLogFollowAChangeOfTheLevel(t *testing.T) {
	logTo(t, logFlags{Level: "info", Format: "logfmt"})
	var lines bytes.Buffer
	_, level, err := logFlags{Level: "error", Format: "logfmt"}.loggerTo(&lines)
	if err != nil {
		t.Fatal(err)
	}
	log.Print("before")
	if err := level.Set("warn"); err != nil {
		t.Fatal(err)
	}
	log.Print("after")
	if text := lines.String(); strings.Contains(text, "before") || strings.Count(text, "msg=after") != 1 {
		t.Errorf("%q", text)
	}
}

// Every command that runs a part takes its logger from its flags.
func TestRun_CommandsRouteTheStandardLog(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--config.file=/nowhere.yml", "--grpc-address=", "--storage.tsdb.path=" + t.TempDir()},
		{"query", "--query.mode=distributed"},
		{"query-frontend", "--query-frontend.log-queries-longer-than=soon"},
		{"sidecar", "--objstore.config-file=/nowhere"},
		{"store", "--objstore.config-file=/nowhere"},
		{"read", "--match=up{", "--output=-", "--format=csv", "--url=http://127.0.0.1:1"},
		{"profiles", "compact", "--objstore.config-file=/nowhere"},
	} {
		logTo(t, logFlags{Level: "info", Format: "logfmt"})
		log.SetOutput(os.Stderr)
		if code, stderr := runCaptured(t, args); code == 0 {
			t.Errorf("%q: %s", args, stderr)
		}
		if _, ok := log.Writer().(standardLog); !ok {
			t.Errorf("%q: the standard log goes to %T", args, log.Writer())
		}
	}
}
