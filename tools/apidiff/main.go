// Command apidiff compares the exported names of the public modules with those of their last
// tags, by the rules of golang.org/x/exp/apidiff. It prints all changes.
//
//	apidiff -root .. -version v0.2.0
//
// It fails if the part of CHANGELOG.md above the last tagged version does not name an incompatible
// change. It also fails if -version must not have incompatible changes: a patch version before
// v1.0.0, and every version from v1.0.0 on that is not a major one. It skips a module without a tag.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/exp/apidiff"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
	"golang.org/x/tools/go/packages"
)

// modules are the directories of the public modules.
var modules = []string{"metrics", "promjson", "metrics/promcompat"}

func main() {
	root := flag.String("root", ".", "directory of the repository")
	version := flag.String("version", "", "version that is going to be tagged, such as v0.2.0; empty: not known yet")
	flag.Parse()
	if err := run(*root, *version, modules, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, version string, modules []string, out io.Writer) error {
	if version != "" && semver.Canonical(version) != version {
		return fmt.Errorf("version %q is not of the form v1.2.3", version)
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	var errs []error
	for _, module := range modules {
		if err := compare(root, module, version, string(changelog), out); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", module, err))
		}
	}
	return errors.Join(errs...)
}

// compare prints the changes of one module and returns an error if one of them is not allowed.
func compare(root, module, version, changelog string, out io.Writer) error {
	last, err := lastVersion(root, module, version)
	if err != nil {
		return err
	}
	if last == "" {
		fmt.Fprintf(out, "%s has no tag: nothing to compare with\n", module)
		return nil
	}
	tmp, err := os.MkdirTemp("", "apidiff")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := export(root, module, module+"/"+last, tmp); err != nil {
		return err
	}
	before, err := load(filepath.Join(tmp, "tree", module))
	if err != nil {
		return fmt.Errorf("at %s: %w", last, err)
	}
	now, err := load(filepath.Join(root, module))
	if err != nil {
		return err
	}
	changes := apidiff.ModuleChanges(before, now).Changes
	slices.SortFunc(changes, func(a, b apidiff.Change) int { return cmp.Compare(a.Message, b.Message) })
	fmt.Fprintf(out, "%s since %s: %d changes\n", module, last, len(changes))
	var errs []error
	for _, c := range changes {
		if c.Compatible {
			fmt.Fprintf(out, "  compatible:   %s\n", c.Message)
			continue
		}
		fmt.Fprintf(out, "  incompatible: %s\n", c.Message)
		errs = append(errs, allowed(c.Message, last, version, changelog))
	}
	return errors.Join(errs...)
}

// allowed returns an error if CHANGELOG.md does not name an incompatible change since version last, or if version must not
// have incompatible changes.
func allowed(message, last, version, changelog string) error {
	for _, heading := range []string{"\n## " + last, "\n## " + last[1:]} {
		if at := strings.Index(changelog, heading); at >= 0 {
			changelog = changelog[:at]
		}
	}
	if name := nameIn(message); !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(changelog) {
		return fmt.Errorf("CHANGELOG.md does not name %s: %s", name, message)
	}
	switch {
	case version == "" || semver.Major(version) != semver.Major(last):
		return nil
	case semver.Major(last) != "v0":
		return fmt.Errorf("%s after %s must have no incompatible changes: %s", version, last, message)
	case semver.MajorMinor(version) == semver.MajorMinor(last):
		return fmt.Errorf("the patch version %s must have no incompatible changes since %s: %s", version, last, message)
	}
	return nil
}

// nameIn returns the changed name in a message of apidiff, such as Add in "(*Counter).Add: removed".
func nameIn(message string) string {
	place, _, _ := strings.Cut(message, ": ")
	names := strings.FieldsFunc(place, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
	if len(names) == 0 {
		return message
	}
	return names[len(names)-1]
}

// lastVersion returns the greatest version of a module's tags that is below version, or the greatest of all if version is
// empty; "" if there is none.
func lastVersion(root, module, version string) (string, error) {
	tags, err := git(root, nil, "tag", "--list", module+"/v*")
	if err != nil {
		return "", err
	}
	last := ""
	for tag := range strings.FieldsSeq(tags) {
		v := strings.TrimPrefix(tag, module+"/")
		if semver.IsValid(v) && semver.Compare(v, last) > 0 && (version == "" || semver.Compare(v, version) < 0) {
			last = v
		}
	}
	return last, nil
}

// export writes the files of a module at a tag, and those of the module that contains its directory, to tmp/tree.
func export(root, module, tag, tmp string) error {
	top, _, nested := strings.Cut(module, "/")
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(tmp, "index")}
	if _, err := git(root, index, "read-tree", "--prefix="+top+"/", tag+":"+top); err != nil {
		return err
	}
	if _, err := git(root, index, "checkout-index", "--all", "--prefix="+filepath.Join(tmp, "tree")+"/"); err != nil {
		return err
	}
	if !nested {
		return nil
	}
	// The tagged go.mod requires the outer module by version, and this version need not be published.
	outer, err := modulePath(filepath.Join(tmp, "tree", top))
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "mod", "edit", "-replace="+outer+"="+filepath.Join(tmp, "tree", top))
	cmd.Dir = filepath.Join(tmp, "tree", module)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go mod edit: %w: %s", err, text)
	}
	return nil
}

// load returns the module in a directory, with the packages that other modules can import.
func load(dir string) (*apidiff.Module, error) {
	name, err := modulePath(dir)
	if err != nil {
		return nil, err
	}
	config := packages.Config{
		Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedExportFile,
		Dir:  dir, Env: append(os.Environ(), "GOWORK=off"),
	}
	all, err := packages.Load(&config, "./...")
	if err != nil {
		return nil, err
	}
	module := &apidiff.Module{Path: name}
	for _, p := range all {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if p.Name != "main" && !slices.Contains(strings.Split(p.PkgPath, "/"), "internal") {
			module.Packages = append(module.Packages, p.Types)
		}
	}
	if len(module.Packages) == 0 {
		return nil, fmt.Errorf("no packages in %s", dir)
	}
	slices.SortFunc(module.Packages, func(a, b *types.Package) int { return cmp.Compare(a.Path(), b.Path()) })
	return module, nil
}

func modulePath(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	if name := modfile.ModulePath(text); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("%s has no module path", path.Join(dir, "go.mod"))
}

// git runs git in a directory with further environment variables and returns its output.
func git(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(text), nil
}
