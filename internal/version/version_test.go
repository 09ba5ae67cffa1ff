package version

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	const revision, at = "0123456789abcdef0123456789abcdef01234567", "2026-11-22T04:00:00Z"
	commit := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.time", Value: at}, {Key: "vcs.modified", Value: "false"}}
	modified := append(commit[:3:3], debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	for _, tt := range []struct {
		name     string
		module   string
		settings []debug.BuildSetting
		want     Info
	}{
		{"a tag", "v0.2.0", commit, Info{Version: "0.2.0", Revision: revision, Time: at}},
		{"a tag, from the module proxy", "v0.2.0", nil, Info{Version: "0.2.0"}},
		{"a modified tag", "v0.2.0+dirty", modified, Info{Version: "0.2.0+dirty", Revision: revision, Time: at}},
		{"a commit after a tag", "v0.2.1-0.20261122040000-0123456789ab", commit, Info{Version: "0.2.1-0.20261122040000-0123456789ab", Revision: revision, Time: at}},
		{"a commit before any tag", "v0.0.0-20261122040000-0123456789ab", commit, Info{Version: "0.2.0-dev+0123456789ab", Revision: revision, Time: at}},
		{"a modified commit before any tag", "v0.0.0-20261122040000-0123456789ab+dirty", modified, Info{Version: "0.2.0-dev+0123456789ab.dirty", Revision: revision, Time: at}},
		{"a commit, from the module proxy", "v0.0.0-20261122040000-0123456789ab", nil, Info{Version: "0.0.0-20261122040000-0123456789ab"}},
		{"a commit in a workspace", "(devel)", commit, Info{Version: "0.2.0-dev+0123456789ab", Revision: revision, Time: at}},
		{"a short revision", "(devel)", []debug.BuildSetting{{Key: "vcs.revision", Value: "12"}}, Info{Version: "0.2.0-dev+12", Revision: "12"}},
		{"tags", "(devel)", []debug.BuildSetting{{Key: "-tags", Value: "clouds"}}, Info{Version: "0.2.0-dev", Tags: "clouds"}},
		{"no version control", "(devel)", nil, Info{Version: "0.2.0-dev"}},
		{"a test", "", nil, Info{Version: "0.2.0-dev"}},
	} {
		got := of(&debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings})
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if got := of(nil); got.Version != "0.2.0-dev" {
		t.Errorf("without build information: %+v", got)
	}
	if got := UserAgent(); !strings.HasPrefix(got, "ferula/") || len(got) < len("ferula/0.2.0") {
		t.Errorf("the user agent is %q", got)
	}
}
