package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/version"
)

// peerProgram is a peer whose name this program can have, such as by a link /bin/prometheus: it then takes the peer's
// command line, and has the peer's defaults and ports. So it starts where the arguments of a container or a unit are
// written for the peer. It opens nothing that the peer keeps closed.
type peerProgram struct {
	version  string
	command  string   // of ferula; "": the command line names one of commands
	commands []string // of both programs
	defaults map[string]string
}

var peerPrograms = map[string]peerProgram{
	"prometheus": {
		version: app.APIVersion, command: "serve",
		defaults: map[string]string{
			"config.file": "prometheus.yml", "web.listen-address": allAddresses + "9090", "grpc-address": "",
			"web.enable-remote-write-receiver": "false", "profiles.enable-receiver": "false",
		},
	},
	"thanos": {
		version: "0.42.4", commands: []string{"sidecar", "query", "query-frontend", "store"},
		defaults: map[string]string{"http-address": allAddresses + "10902", "grpc-address": allAddresses + "10901"},
	},
}

// allAddresses begins an address that listens on all addresses. Only under a peer's name it is a default.
const allAddresses = "0.0.0.0:"

// nameOf returns the name by which a program was started.
func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".exe") }

// asTyped returns how one writes a command of ferula, "" for none, for the program of a name.
func asTyped(name, command string) string {
	peer, ok := peerPrograms[name]
	if !ok {
		name = "ferula"
	}
	if peer.command != "" {
		return name
	}
	return strings.TrimSpace(name + " " + command)
}

// thanosGlobal are the flags that have a value, and that Thanos accepts before the command.
var thanosGlobal = []string{
	"--auto-gomemlimit.ratio", "--log.format", "--log.level", "--tracing.config", "--tracing.config-file",
}

// args returns the command line of ferula for one of the peer.
func (p peerProgram) args(args []string) ([]string, error) {
	if p.command != "" {
		return append([]string{p.command}, args...), nil
	}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case slices.Contains(thanosGlobal, arg):
			i++
		case strings.HasPrefix(arg, "-"):
		case slices.Contains(p.commands, arg):
			return slices.Concat([]string{arg}, args[:i], args[i+1:]), nil
		default:
			return nil, usageError(fmt.Errorf("thanos %s is not part of ferula: run it from Thanos' own image; ferula "+
				"replaces %s", arg, strings.Join(p.commands, ", ")))
		}
	}
	if slices.ContainsFunc(args, func(arg string) bool { return arg == "--version" || arg == "--help" || arg == "-h" }) {
		return args, nil
	}
	return nil, usageError(errors.New("a command is missing: " + strings.Join(p.commands, ", ")))
}

// setDefaults gives flags the defaults of the peer.
func (p peerProgram) setDefaults(parser *kong.Kong) {
	for _, command := range parser.Model.Leaves(false) {
		for _, f := range command.Flags {
			value, ok := p.defaults[f.Name]
			if ok && (command.Name == p.command || slices.Contains(p.commands, command.Name)) {
				f.Default, f.HasDefault = value, value != ""
			}
		}
	}
}

// versionText returns what --version prints: in the form of a peer its version, of which scripts read the third word.
func (p peerProgram) versionText(name string) string {
	build := version.Current()
	if p.version == "" {
		return "ferula " + build.Version
	}
	return fmt.Sprintf(`%s, version %s (branch: ferula %s, revision: %s)
  go version:       %s
  platform:         %s/%s
  tags:             %s`,
		name, p.version, build.Version, build.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH, build.Tags)
}

// warnOpen logs once which flags make the process listen on all addresses by default.
func warnOpen(logger *slog.Logger, k *kong.Context, values map[string]string) {
	var open []string
	for _, f := range k.Flags() {
		if strings.HasPrefix(f.Default, allAddresses) && values[f.Name] == f.Default {
			open = append(open, "--"+f.Name+"="+f.Default)
		}
	}
	if len(open) > 0 {
		logger.Warn("Listening on all addresses, as the program of this name does; set other addresses to narrow it",
			"flags", strings.Join(open, " "))
	}
}
