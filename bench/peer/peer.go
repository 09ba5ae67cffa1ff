// Package peer knows the programs that are compared: where they come from and how each is started.
//
// In comes the repository's root, out go built programs and process specifications for them: peers by
// test/peers/build.sh from their released modules, ferula by go build from the tree as it is. Each gets the flags its
// users give it and the same Go runtime settings. What is not here: data, requests and measuring.
package peer

import (
	"bytes"
	"context"
	"debug/buildinfo"
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
	Relay      = "relay" // the bench's own floor under frontends

	Storestream = "storestream" // a worker that moves series through ferula's StoreAPI
	ThanosCodec = "thanoscodec" // one that moves them through Thanos'
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
	Null  bool              // run the peer in ferula's place, to see what the bench makes of equals
}

// Program is a built program.
type Program struct {
	Name    string // the part it plays; under -null the peer plays ferula's
	Path    string
	Version string // as it says itself, in one line
	kind    string // what it is
}

// Ferula is ferula, or under -null the peer that is measured in its place.
func (p Programs) Ferula(ctx context.Context, instead string) (Program, error) {
	if !p.Null {
		return p.Get(ctx, Ferula)
	}
	same, err := p.Get(ctx, instead)
	same.Name = Ferula
	return same, err
}

// Get builds the named program, or finds it built.
func (p Programs) Get(ctx context.Context, name string) (Program, error) {
	program := Program{Name: name, Path: p.Given[name], kind: name}
	if program.Path == "" {
		build := p.buildPeer
		switch name {
		case Ferula:
			build = p.buildFerula
		case Relay, Storestream:
			build = p.buildOwn
		case ThanosCodec:
			build = p.buildThanosCodec
		}
		path, err := build(ctx, name)
		if err != nil {
			return Program{}, fmt.Errorf("building %s: %w", name, err)
		}
		program.Path = path
	}
	switch name {
	case Ferula, Relay, Storestream:
		program.Version = name + ", built from this tree"
		return program, nil
	case ThanosCodec:
		info, err := buildinfo.ReadFile(program.Path)
		if err != nil {
			return Program{}, fmt.Errorf("%s: %w", name, err)
		}
		for _, module := range info.Deps {
			if module.Path == "github.com/thanos-io/thanos" {
				program.Version = name + ", built with Thanos " + module.Version
			}
		}
		return program, nil
	}
	version, err := exec.CommandContext(ctx, program.Path, "--version").CombinedOutput() // some say it on standard error
	if err != nil {
		return Program{}, fmt.Errorf("%s: %w: %s", name, err, version)
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
			var args []string
			if p.kind == Ferula {
				args = append(args, "serve", "--grpc-address=127.0.0.1:0")
			}
			return append(args,
				"--config.file="+t.Config,
				"--storage.tsdb.path="+t.Dir,
				"--storage.tsdb.retention.time="+retentionOfAges,
				"--web.listen-address="+addr,
			)
		},
	}
}

// Frontend is what a query frontend is given.
type Frontend struct {
	Downstream string   // URL
	Interval   string   // of a split
	Cache      string   // YAML of the result cache; empty for none
	More       []string // flags
	Log        string
}

// Frontend starts Thanos' query frontend, or ferula's. Both take the same flags. Start and end are left as they are asked
// for, so that both put the same questions to the downstream, and answers are compressed as the client accepts.
func (p Program) Frontend(f Frontend) proc.Spec {
	return proc.Spec{
		Name: p.Name, Path: p.Path, Env: RuntimeEnv(), Ready: "/-/ready", Log: f.Log,
		Args: func(addr string) []string {
			args := []string{
				"query-frontend",
				"--http-address=" + addr,
				"--query-frontend.downstream-url=" + f.Downstream,
				"--query-frontend.compress-responses",
				"--query-range.split-interval=" + f.Interval,
				"--no-query-range.align-range-with-step",
			}
			if f.Cache != "" {
				args = append(args, "--query-range.response-cache-config="+f.Cache)
			}
			return append(args, f.More...)
		},
	}
}

// Relay starts the relay before a downstream.
func (p Program) Relay(downstream, log string) proc.Spec {
	return proc.Spec{
		Name: p.Name, Path: p.Path, Env: RuntimeEnv(), Ready: "/-/ready", Log: log,
		Args: func(addr string) []string { return []string{"-listen=" + addr, "-downstream=" + downstream} },
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

// buildOwn builds a program of the bench's own.
func (p Programs) buildOwn(ctx context.Context, name string) (string, error) {
	path := filepath.Join(p.Cache, name)
	_, err := run(ctx, filepath.Join(p.Root, "bench"), []string{"GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0"},
		"go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/"+name)
	return path, err
}

// buildThanosCodec builds the worker that has a module of its own, with the tags and the dependencies of Thanos' releases.
func (p Programs) buildThanosCodec(ctx context.Context, name string) (string, error) {
	path := filepath.Join(p.Cache, name)
	_, err := run(ctx, filepath.Join(p.Root, "bench", name), []string{"GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0"},
		"go", "build", "-trimpath", "-buildvcs=false", "-tags=slicelabels", "-o", path, ".")
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
