// Package peer finds and starts the programs that are compared.
//
// Programs takes the repository's root and returns built programs and process specifications. test/peers/build.sh builds the
// peers from their released modules, and go build builds ferula from the working tree. Each gets the flags of its usual
// deployment and the same Go runtime settings. Data, requests and measuring are in other packages.
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

// Runtime settings, the same for every program and for measurements in the bench's own process. 75 is Prometheus' default.
// The memory limit is set so that no program derives one from the machine's memory.
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
	Relay      = "relay" // the bench's own lower bound of a frontend

	Storestream = "storestream" // a worker that sends series through ferula's StoreAPI
	ThanosCodec = "thanoscodec" // a worker that sends series through Thanos' StoreAPI
)

// RuntimeEnv returns the environment that gives every program the same runtime settings.
func RuntimeEnv() []string {
	return []string{
		"GOGC=" + strconv.Itoa(GOGC),
		fmt.Sprintf("GOMEMLIMIT=%dMiB", memoryLimitMiB),
		"GOMAXPROCS=" + strconv.Itoa(runtime.NumCPU()),
	}
}

// SetRuntime applies the settings of RuntimeEnv to this process.
func SetRuntime() {
	debug.SetGCPercent(GOGC)
	debug.SetMemoryLimit(memoryLimitMiB << 20)
	runtime.GOMAXPROCS(runtime.NumCPU())
}

// Programs finds and builds programs.
type Programs struct {
	Root  string            // of the repository, absolute
	Cache string            // absolute directory for built programs
	Given map[string]string // paths of existing programs, by name; these are not built
	Null  bool              // run the peer instead of ferula, to measure the noise of the bench
}

// Program is a built program.
type Program struct {
	Name    string // its role; under -null the peer has ferula's role
	Path    string
	Version string // as reported by the program, in one line
	kind    string // name of the program that was built
}

// Ferula returns ferula, or under -null the peer that is measured instead.
func (p Programs) Ferula(ctx context.Context, instead string) (Program, error) {
	if !p.Null {
		return p.Get(ctx, Ferula)
	}
	same, err := p.Get(ctx, instead)
	same.Name = Ferula
	return same, err
}

// Get returns the named program and builds it if needed.
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
	version, err := exec.CommandContext(ctx, program.Path, "--version").CombinedOutput() // some print it to standard error
	if err != nil {
		return Program{}, fmt.Errorf("%s: %w: %s", name, err, version)
	}
	program.Version, _, _ = strings.Cut(string(version), "\n")
	return program, nil
}

// TSDB configures a server over a TSDB directory.
type TSDB struct {
	Dir    string // its data, which it may change
	Config string // its configuration file
	Log    string
	More   []string // further flags
}

// Serve returns the specification of Prometheus, or ferula serve, over a TSDB directory. Both take the same flags. Retention is
// set so that no block expires.
func (p Program) Serve(t TSDB) proc.Spec {
	return proc.Spec{
		Name: p.Name, Path: p.Path, Env: RuntimeEnv(), Ready: "/-/ready", Log: t.Log,
		Args: func(addr string) []string {
			var args []string
			if p.kind == Ferula {
				args = append(args, "serve", "--grpc-address=127.0.0.1:0")
			}
			args = append(args,
				"--config.file="+t.Config,
				"--storage.tsdb.path="+t.Dir,
				"--storage.tsdb.retention.time="+retentionOfAges,
				"--web.listen-address="+addr,
			)
			return append(args, t.More...)
		},
	}
}

// Frontend configures a query frontend.
type Frontend struct {
	Downstream string   // URL
	Interval   string   // split interval
	Cache      string   // YAML of the result cache; empty for none
	More       []string // further flags
	Log        string
}

// Frontend returns the specification of Thanos' query frontend, or ferula's. Both take the same flags. Start and end are not
// aligned, so that both send the same queries to the downstream. Responses are compressed if the client accepts it.
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

// Relay returns the specification of the relay in front of a downstream.
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

// buildOwn builds one of the bench's own programs.
func (p Programs) buildOwn(ctx context.Context, name string) (string, error) {
	path := filepath.Join(p.Cache, name)
	_, err := run(ctx, filepath.Join(p.Root, "bench"), []string{"GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0"},
		"go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/"+name)
	return path, err
}

// buildThanosCodec builds the worker with its own module, with the tags and the dependencies of Thanos' releases.
func (p Programs) buildThanosCodec(ctx context.Context, name string) (string, error) {
	path := filepath.Join(p.Cache, name)
	_, err := run(ctx, filepath.Join(p.Root, "bench", name), []string{"GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0"},
		"go", "build", "-trimpath", "-buildvcs=false", "-tags=slicelabels", "-o", path, ".")
	return path, err
}

// run returns the standard output of a command; its standard error is passed through.
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
