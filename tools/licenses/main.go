// Command licenses prints the licences and notices of all packages of other modules, and of Go, that are linked into a program. Their
// authors demand that a binary is distributed with them:
//
//	licenses -tags clouds ./cmd/ferula >LICENSES.txt
//
// The packages are those of GOOS and GOARCH. A text that several modules have is printed once. A module without a licence, and a licence
// that ferula must not have, are errors.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

func run(args []string, to io.Writer) error {
	flags := flag.NewFlagSet("licenses", flag.ContinueOnError)
	tags := flags.String("tags", "", "build tags")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("one argument is needed: the package of a program")
	}
	listed, err := goOutput("list", "-deps", "-tags="+*tags, "-json=Standard,Dir,Module", flags.Arg(0))
	if err != nil {
		return err
	}
	root, err := goOutput("env", "GOROOT")
	if err != nil {
		return err
	}
	version, err := goOutput("env", "GOVERSION")
	if err != nil {
		return err
	}
	all := texts{}
	goRoot := strings.TrimSpace(string(root))
	if _, err := all.add("Go "+strings.TrimSpace(string(version)), goRoot, goRoot); err != nil {
		return err
	}
	if err := all.addPackages(listed); err != nil {
		return err
	}
	return all.print(to)
}

func goOutput(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}

// texts are the modules of each text, by the text without differences of white space.
type texts map[string]*text

type text struct {
	content []byte
	modules []string // with version and name of the file
}

// listedPackage is a package as `go list -json` prints it.
type listedPackage struct {
	Standard bool
	Dir      string
	Module   *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version string }
	}
}

// addPackages adds the licences of each package: those of its directory and of those above it in its module, because copied code has its own.
func (t texts) addPackages(listed []byte) error {
	found := map[string]bool{}
	for in := json.NewDecoder(bytes.NewReader(listed)); ; {
		var p listedPackage
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		name := p.Module.Path + " " + p.Module.Version
		if r := p.Module.Replace; r != nil {
			name = r.Path + " " + r.Version
		}
		n, err := t.add(name, p.Module.Dir, p.Dir)
		if err != nil {
			return err
		}
		found[name] = found[name] || n > 0
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !found[name] {
			return fmt.Errorf("%s has no licence", name)
		}
	}
	return nil
}

var licenseFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)s?([.-].*)?$`)

// refused are licences whose terms the whole program would get, by their first lines.
var refused = regexp.MustCompile(`(?i)^.{0,200}(gnu affero|gnu general public license|server side public license|business source license)`)

// add adds the licences in dir and its parents up to root, and returns their number.
func (t texts) add(module, root, dir string) (int, error) {
	n := 0
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return n, err
		}
		for _, e := range entries {
			if e.IsDir() || !licenseFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
				continue
			}
			path := filepath.Join(dir, e.Name())
			content, err := os.ReadFile(path)
			if err != nil {
				return n, err
			}
			key := strings.Join(strings.Fields(string(content)), " ")
			if refused.MatchString(key) {
				return n, fmt.Errorf("%s: the licence %s is not permitted", module, path)
			}
			if t[key] == nil {
				t[key] = &text{content: content}
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return n, err
			}
			if name := module + " " + filepath.ToSlash(rel); !slices.Contains(t[key].modules, name) {
				t[key].modules = append(t[key].modules, name)
			}
			n++
		}
		if len(dir) <= len(root) {
			return n, nil
		}
	}
}

func (t texts) print(to io.Writer) error {
	var out bytes.Buffer
	out.WriteString("Code of others that is linked into ferula, with its licences and notices. ferula itself is under Apache-2.0.\n" +
		"`go mod download NAME@VERSION` fetches the source of a module. The page has a list of its own: /LICENSES.txt.\n")
	for _, one := range t {
		slices.Sort(one.modules)
	}
	line := strings.Repeat("-", 100) + "\n"
	for _, one := range slices.SortedFunc(maps.Values(t), func(a, b *text) int { return strings.Compare(a.modules[0], b.modules[0]) }) {
		fmt.Fprintf(&out, "\n%s%s\n%s\n%s\n", line, strings.Join(one.modules, "\n"), line, bytes.TrimSpace(one.content))
	}
	_, err := to.Write(out.Bytes())
	return err
}
