// Package role assembles: it turns options into a running process.
//
// Options come in from cmd; a role builds the loggers' children, registries,
// storages, engines and servers that it needs, joins them, and runs until its
// context ends, then takes them down in the order in which they depend on each
// other. It is the only place that does so, and there is nothing else here: no
// parsing of flags, no endpoint, no encoding.
package role

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/ferula-io/ferula/internal/api"
)

// Version is ferula's own.
const Version = "0.1.0"

// apiVersion is the release of Prometheus whose HTTP API is spoken. Grafana
// reads it to decide which endpoints and parameters it may use.
const apiVersion = "3.15.0"

// buildInfo describes the running program as the Go toolchain recorded it.
func buildInfo() api.BuildInfo {
	info := api.BuildInfo{
		Version:   apiVersion,
		GoVersion: runtime.Version(),
		Program:   "ferula " + Version,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range build.Settings {
			switch setting.Key {
			case "vcs.revision":
				info.Revision = setting.Value
			case "vcs.time":
				info.BuildDate = setting.Value
			}
		}
	}
	return info
}

// setGCPercent applies runtime.gogc as Prometheus does and leaves it where
// status/runtimeinfo reads it.
func setGCPercent(percent int) {
	debug.SetGCPercent(percent)
	text := "off"
	if percent >= 0 {
		text = strconv.Itoa(percent)
	}
	_ = os.Setenv("GOGC", text) // fails for names with = or NUL only
}
