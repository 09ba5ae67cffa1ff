// Package role assembles processes: it turns the options of a subcommand into a running
// process.
//
// Package cmd parses flags into options. A role builds the child loggers, registries,
// storages, engines and servers that it needs and runs them until its context is
// canceled. It then stops them in the order of their dependencies: servers before
// engines, engines before storages. The package contains no flag parsing, no HTTP
// endpoint of an API and no encoding.
package role

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/version"
)

// apiVersion is the Prometheus version whose HTTP API is implemented. Grafana reads it
// from status/buildinfo to decide which endpoints and parameters it may use.
const apiVersion = "3.15.0"

// buildInfo returns the build information that the Go toolchain recorded.
func buildInfo() api.BuildInfo {
	build := version.Current()
	return api.BuildInfo{
		Version:   apiVersion,
		Revision:  build.Revision,
		BuildDate: build.Time,
		GoVersion: runtime.Version(),
		Program:   "ferula " + build.Version,
	}
}

// setGCPercent applies runtime.gogc and sets the environment variable GOGC, which
// status/runtimeinfo returns. Prometheus does the same.
func setGCPercent(percent int) {
	debug.SetGCPercent(percent)
	value := "off"
	if percent >= 0 {
		value = strconv.Itoa(percent)
	}
	_ = os.Setenv("GOGC", value) // fails only for a name with = or NUL
}
