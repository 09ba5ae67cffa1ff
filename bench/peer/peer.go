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
	"slices"
	"strconv"
	"strings"
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
	Thanos     = "thanos"
	Victoria   = "victoriametrics"
	Ferula     = "ferula"
	Relay      = "relay" // the bench's own lower bounds of a frontend, and of a server of chunks
	Drain      = "drain" // reads by remote read with ferula's client

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
		path, err := p.build(ctx, name)
		if err != nil {
			return Program{}, fmt.Errorf("building %s: %w", name, err)
		}
		program.Path = path
	}
	if _, ok := owns[name]; ok {
		program.Version = name + ", built from this tree"
		info, err := buildinfo.ReadFile(program.Path)
		if err != nil || name != ThanosCodec {
			return program, err
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

// own says how a program of this repository is built: as its users do, without the bench's settings.
type own struct {
	dir, pkg, work string // below the root; GOWORK
	flags          []string
}

var owns = map[string]own{
	Ferula:      {pkg: "./cmd/ferula"},
	Drain:       {pkg: "./test/drain"},
	Relay:       {dir: "bench", pkg: "./cmd/relay", work: "off"},
	Storestream: {dir: "bench", pkg: "./cmd/storestream", work: "off"},
	// With its own module, with the tags and the dependencies of Thanos' releases.
	ThanosCodec: {dir: "bench/thanoscodec", pkg: ".", work: "off", flags: []string{"-tags=slicelabels", "-mod=readonly"}},
}

func (p Programs) build(ctx context.Context, name string) (string, error) {
	o, ok := owns[name]
	if !ok {
		out, err := run(ctx, p.Root, nil, filepath.Join(p.Root, "test", "peers", "build.sh"), name)
		return strings.TrimSpace(string(out)), err
	}
	path := filepath.Join(p.Cache, name)
	args := slices.Concat([]string{"build", "-trimpath", "-buildvcs=false", "-o", path}, o.flags, []string{o.pkg})
	_, err := run(ctx, filepath.Join(p.Root, o.dir), []string{"GOWORK=" + o.work, "GOFLAGS=", "CGO_ENABLED=0"}, "go", args...)
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
