// Package peer knows the programs that are compared: where they come from and how each is started.
//
// In comes the repository's root, out go built programs and process specifications for them: peers by
// test/peers/build.sh from their released modules, ferula by go build from the tree as it is. Each gets the flags its
// users give it and the same Go runtime settings. What is not here: data, requests and measuring.
package peer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/ferula-io/ferula/bench/proc"
)

// Runtime settings, the same for every program and for measurements in the bench's own process. 75 is what Prometheus
// sets by itself where nothing is said; the limit is there so that nobody derives one from the machine's memory.
const (
	GOGC            = 75
	memoryLimitMiB  = 4096
	retentionOfAges = "10y"
)

// Names of programs, as test/peers/build.sh and -bin know them.
const (
	Prometheus = "prometheus"
	Promtool   = "promtool"
	Thanos     = "thanos"
	VersityGW  = "versitygw"
	Ferula     = "ferula"
)

// RuntimeEnv is the environment by which every program is given the same runtime settings.
func RuntimeEnv() []string {
	return []string{
		"GOGC=" + strconv.Itoa(GOGC),
		fmt.Sprintf("GOMEMLIMIT=%dMiB", memoryLimitMiB),
		"GOMAXPROCS=" + strconv.Itoa(runtime.NumCPU()),
	}
}

// SetRuntime gives this process the settings of RuntimeEnv.
func SetRuntime() {
	debug.SetGCPercent(GOGC)
	debug.SetMemoryLimit(memoryLimitMiB << 20)
	runtime.GOMAXPROCS(runtime.NumCPU())
}

// Programs finds and builds programs.
type Programs struct {
	Root  string            // of the repository, absolute
	Cache string            // absolute folder for what is built here
	Given map[string]string // name to path, of programs that are not to be built
	Null  bool              // run Prometheus in ferula's place, to see what the bench makes of equals
}

// Program is a built program.
type Program struct {
	Name    string
	Path    string
	Command []string // what stands before its flags
	Version string   // as it says itself, in one line
}

// Get builds the named program, or finds it built.
func (p Programs) Get(ctx context.Context, name string) (Program, error) {
	program := Program{Name: name, Path: p.Given[name]}
	if name == Ferula && p.Null {
		same, err := p.Get(ctx, Prometheus)
		same.Name = Ferula
		return same, err
	}
	if name == Ferula {
		program.Command = []string{"serve"}
	}
	if program.Path == "" {
		build := p.buildPeer
		if name == Ferula {
			build = p.buildFerula
		}
		path, err := build(ctx, name)
		if err != nil {
			return Program{}, fmt.Errorf("building %s: %w", name, err)
		}
		program.Path = path
	}
	if name == Ferula {
		program.Version = "ferula, built from this tree"
		return program, nil
	}
	version, err := run(ctx, p.Root, nil, program.Path, "--version")
	if err != nil {
		return Program{}, err
	}
	program.Version, _, _ = strings.Cut(string(version), "\n")
	return program, nil
}

// TSDB is what a server over a TSDB folder is given.
type TSDB struct {
	Dir    string // its data, which it may change
	Config string // its configuration file
	Log    string
}

// Serve starts Prometheus, or ferula serve, over a TSDB folder. Both take the same flags. Retention is set so that no
// block is ever too old.
func (p Program) Serve(t TSDB) proc.Spec {
	return proc.Spec{
		Name: p.Name, Path: p.Path, Env: RuntimeEnv(), Ready: "/-/ready", Log: t.Log,
		Args: func(addr string) []string {
			return append(append([]string{}, p.Command...),
				"--config.file="+t.Config,
				"--storage.tsdb.path="+t.Dir,
				"--storage.tsdb.retention.time="+retentionOfAges,
				"--web.listen-address="+addr,
			)
		},
	}
}

func (p Programs) buildPeer(ctx context.Context, name string) (string, error) {
	out, err := run(ctx, p.Root, nil, filepath.Join(p.Root, "test", "peers", "build.sh"), name)
	return strings.TrimSpace(string(out)), err
}

// buildFerula builds the server as its users do, in the repository's own workspace and without the bench's settings.
func (p Programs) buildFerula(ctx context.Context, name string) (string, error) {
	path := filepath.Join(p.Cache, name)
	_, err := run(ctx, p.Root, []string{"GOWORK=", "GOFLAGS=", "CGO_ENABLED=0"},
		"go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/"+name)
	return path, err
}

// run returns what a command writes to its standard output; what it writes to standard error is shown as it comes.
func run(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return out.Bytes(), nil
}
