// Package version reads the version of ferula from the build.
package version

import (
	"runtime/debug"
	"strings"
	"sync"
)

// development is the version of builds that record neither a tag nor a commit.
const development = "0.2.0-dev"

// Info identifies a build.
type Info struct {
	Version  string // 0.2.0 for a tagged commit; 0.2.0-dev+REVISION for another one
	Revision string // of the commit, "" if unknown
	Time     string // of the commit, in RFC 3339, "" if unknown
	Tags     string // of the build, separated by commas; "" without
}

// Current returns the running program's build.
var Current = sync.OnceValue(func() Info {
	recorded, _ := debug.ReadBuildInfo() // nil if there is none
	return of(recorded)
})

// UserAgent returns the header User-Agent of ferula's own requests.
func UserAgent() string { return "ferula/" + Current().Version }

// of returns the build that the Go toolchain recorded. The main module's version is a
// tag, or a pseudo-version, which has the time and revision of a commit, or "(devel)".
func of(recorded *debug.BuildInfo) Info {
	info := Info{Version: development}
	if recorded == nil {
		return info
	}
	modified := false
	for _, setting := range recorded.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Revision = setting.Value
		case "-tags":
			info.Tags = setting.Value
		case "vcs.time":
			info.Time = setting.Value
		case "vcs.modified":
			modified = setting.Value == "true"
		}
	}
	if v, ok := strings.CutPrefix(recorded.Main.Version, "v"); ok &&
		(info.Revision == "" || !strings.HasPrefix(v, "0.0.0-")) {
		info.Version = v
		return info
	}
	if info.Revision != "" {
		info.Version += "+" + info.Revision[:min(12, len(info.Revision))]
		if modified {
			info.Version += ".dirty"
		}
	}
	return info
}
