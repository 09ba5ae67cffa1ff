package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// peers are the programs that the commands replace, with their versions.
var peers = map[string][2]string{
	"serve": {"prometheus", "3.15.0"}, "query": {"thanos query", "0.42.4"}, "query-frontend": {"thanos query-frontend", "0.42.4"},
	"sidecar": {"thanos sidecar", "0.42.4"}, "store": {"thanos store", "0.42.4"},
}

// formerFlags are flags that only earlier versions of a peer accept.
var formerFlags = []string{"query.series-response-batch-size"}

// update makes TestFlagsDoc_IsCurrent write the documentation: `make generate`.
var update = flag.Bool("update", false, "write docs/ops/flags.md")

func parserOf(t *testing.T, cli *commands) *kong.Kong {
	t.Helper()
	parser, err := newParser("ferula", cli, kong.Exit(func(int) {}), kong.Writers(&bytes.Buffer{}, &bytes.Buffer{}))
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

func parse(t *testing.T, args ...string) (*commands, error) {
	t.Helper()
	var cli commands
	_, _, err := parseArgs(parserOf(t, &cli), args)
	return &cli, err
}

// ignoredNames returns the names of the flags of a command line that have no effect.
func ignoredNames(t *testing.T, args ...string) (names []string) {
	t.Helper()
	var cli commands
	_, ignored, err := parseArgs(parserOf(t, &cli), args)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range slices.Concat(ignored, ignoredFeatures("features", cli.Serve.Features, isFeature),
		ignoredFeatures("query-features", cli.Query.Features, isQueryFeature)) {
		names = append(names, row.name)
	}
	return names
}

// flagsOf returns the flags of a command.
func flagsOf(t *testing.T, command string) map[string]*kong.Flag {
	t.Helper()
	flags := map[string]*kong.Flag{}
	for _, node := range parserOf(t, &commands{}).Model.Children {
		if node.Name == command {
			for _, f := range node.Flags {
				flags[f.Name] = f
			}
		}
	}
	if len(flags) == 0 {
		t.Fatalf("no command %s", command)
	}
	return flags
}

// captured returns the flags of the --help of a command's peer, which are committed as one name per line,
// with the prefix [no-] for switches.
func captured(t *testing.T, command string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("testdata/" + strings.ReplaceAll(peers[command][0], " ", "-") + "-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	return namesOf(strings.Fields(string(text)))
}

var docRow = regexp.MustCompile("(?m)^\\| `(?:--)?([a-z0-9._-]+)`(°?) \\|.* \\| (.*) \\|$")

// documented returns the notes of a part of docs/ops/flags.md, by flag or feature. hidden are those that the peer's
// --help does not list.
func documented(t *testing.T, part string) (notes map[string]string, hidden []string) {
	t.Helper()
	doc, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	notes = map[string]string{}
	for _, m := range docPart.FindAllStringSubmatch(string(doc), -1) {
		if m[2] != part {
			continue
		}
		for _, row := range docRow.FindAllStringSubmatch(m[0], -1) {
			notes[row[1]] = strings.TrimSpace(row[3])
			if row[2] != "" {
				hidden = append(hidden, row[1])
			}
		}
	}
	return notes, hidden
}

// peerNames returns the flags of a command that its peer has, sorted. listed reports whether the peer's --help lists it.
func peerNames(t *testing.T, command string) (names []string, listed map[string]bool) {
	t.Helper()
	listed = map[string]bool{}
	for name := range captured(t, command) {
		names, listed[name] = append(names, name), true
	}
	_, hidden := documented(t, command)
	for _, p := range peerFlagsOf(command) {
		hidden = append(hidden, p.name)
	}
	for _, name := range hidden {
		if !listed[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), listed
}

// namesOf returns whether a flag is a switch, by name.
func namesOf(lines []string) map[string]bool {
	isSwitch := map[string]bool{}
	for _, line := range lines {
		name, negatable := strings.CutPrefix(line, "[no-]")
		isSwitch[name] = negatable
	}
	return isSwitch
}

// Kinds are those of the peer, so that the peer's command lines are parsed in the same way.
func TestPeerFlags_EveryFlagOfThePeerIsAFlagOfTheSameKind(t *testing.T) {
	for command, peer := range peers {
		flags, listed := flagsOf(t, command), captured(t, command)
		if len(listed) < 40 {
			t.Errorf("only %d flags of %s", len(listed), peer[0])
		}
		for name, isSwitch := range listed {
			f := flags[name]
			if f == nil {
				t.Errorf("%s has no flag --%s", command, name)
				continue
			}
			if f.IsBool() != isSwitch {
				t.Errorf("%s --%s is a switch: %v, of %s: %v", command, name, f.IsBool(), peer[0], isSwitch)
			}
			if isSwitch && f.Tag.Negatable == "" {
				t.Errorf("%s has no --no-%s", command, name)
			}
		}
		names, _ := peerNames(t, command)
		for _, name := range names {
			if flags[name] == nil {
				t.Errorf("%s has no flag --%s", command, name)
			}
		}
	}
}

func TestPeerFlags_EachIsOneFlagWithAReason(t *testing.T) {
	kinds := []string{"", "switch", "number", "duration", "size", "yaml", "url"}
	for command := range peers {
		count := map[string]int{}
		for _, node := range parserOf(t, &commands{}).Model.Children {
			if node.Name == command {
				for _, f := range node.Flags {
					count[f.Name]++
				}
			}
		}
		for _, p := range peerFlagsOf(command) {
			if count[p.name] != 1 || p.why == "" || !slices.Contains(kinds, p.kind) {
				t.Errorf("%s: %d flags of %+v", command, count[p.name], p)
			}
		}
	}
}

// The source of Prometheus, of the version in go.mod, also has its hidden flags and
// features.
func TestServeTable_HasEveryFlagAndFeatureOfPrometheusSource(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "cmd", "prometheus", "main.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	flags, features := []string{"log.level", "log.format"}, []string{}
	text := func(e ast.Expr) string {
		literal, ok := e.(*ast.BasicLit)
		if !ok {
			return ""
		}
		value, _ := strconv.Unquote(literal.Value)
		return value
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch f := n.Fun.(type) {
			case *ast.SelectorExpr:
				if f.Sel.Name == "Flag" && len(n.Args) == 2 {
					flags = append(flags, text(n.Args[0]))
				}
			case *ast.Ident:
				if strings.HasSuffix(f.Name, "OnlyFlag") && len(n.Args) == 3 {
					flags = append(flags, text(n.Args[1]))
				}
			}
		case *ast.FuncDecl:
			if n.Name.Name != "setFeatureListOptions" {
				return true
			}
			ast.Inspect(n, func(n ast.Node) bool {
				if c, ok := n.(*ast.CaseClause); ok {
					for _, e := range c.List {
						features = append(features, text(e))
					}
				}
				return true
			})
		}
		return true
	})
	flags = slices.DeleteFunc(flags, func(name string) bool { return name == "" }) // serverOnlyFlag's own parameter
	names, _ := peerNames(t, "serve")
	compareNames(t, "flags", flags, names)
	compareNames(t, "features", features, featureList())
}

func compareNames(t *testing.T, what string, source, known []string) {
	t.Helper()
	if len(source) < 30 {
		t.Errorf("only %d %s in the source", len(source), what)
	}
	for _, name := range source {
		if !slices.Contains(known, name) {
			t.Errorf("%s: there is no %s", what, name)
		}
	}
	for _, name := range known {
		if !slices.Contains(source, name) {
			t.Errorf("%s: Prometheus has no %s", what, name)
		}
	}
}

// featureList returns all features of serve, sorted.
func featureList() []string {
	all := slices.Collect(maps.Keys(features))
	for _, p := range peerFlagsOf("features") {
		all = append(all, p.name)
	}
	slices.Sort(all)
	return all
}

func TestServeFeatures_EachIsHonouredInertOrRefused(t *testing.T) {
	if all := featureList(); len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("twice: %q", all)
	}
}

func TestServeFeatures_RefusedAreErrorsAndUnknownAreIgnoredAsInPrometheus(t *testing.T) {
	for names, want := range map[string]string{
		"otlp-deltatocumulative,otlp-native-delta-ingestion": "exclude each other",
		"st-synthesis": "--enable-feature=st-synthesis is not supported",
	} {
		if err := optionsOf(t, "serve", "--enable-feature=exemplar-storage,"+names); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(names, err)
		}
	}
	args := []string{"serve", "--enable-feature=old-ui,exemplar-storage, ,nonsense", "--enable-feature=remote-write-receiver"}
	if err := optionsOf(t, args...); err != nil {
		t.Fatal(err)
	}
	want := []string{"enable-feature=old-ui", "enable-feature=nonsense", "enable-feature=remote-write-receiver"}
	if got := ignoredNames(t, args...); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// sample returns a value that the kind of a flag accepts.
func sample(p peerFlag) string {
	switch p.kind {
	case "number":
		return "5e3"
	case "duration":
		return "1h30m"
	case "size":
		return "64MB"
	}
	return "x"
}

func TestCheckPeerFlags_InertAreNamedAndRefusedAreErrors(t *testing.T) {
	for command := range peers {
		for _, p := range peerFlagsOf(command) {
			arg := "--" + p.name
			if p.kind != "switch" {
				arg += "=" + sample(p)
			}
			if !p.refused {
				if names := ignoredNames(t, command, arg, arg); !slices.Equal(names, []string{p.name}) {
					t.Errorf("%s %s: %q", command, arg, names)
				}
				continue
			}
			_, err := parse(t, command, arg)
			_, negated := parse(t, command, "--no-"+p.name)
			if p.kind == "switch" && err == nil {
				err, negated = negated, err // refused if it is turned off
			}
			if err == nil || !strings.Contains(err.Error(), "--"+p.name) || !strings.Contains(err.Error(), p.why) {
				t.Errorf("%s %s: %v", command, arg, err)
			}
			if p.kind == "switch" && negated != nil {
				t.Errorf("%s %s: the default is an error: %v", command, p.name, negated)
			}
		}
	}
	if names := ignoredNames(t, "serve"); len(names) > 0 {
		t.Errorf("without flags %q are ignored", names)
	}
	if _, err := parse(t, "sidecar", "--reloader.process-name=prometheus"); err != nil {
		t.Error(err)
	}
	for _, arg := range []string{"--rules.max-concurrent-evals=many", "--rules.alert.resend-delay=soon", "--alertmanager.notification-batch-size="} {
		if _, err := parse(t, "serve", arg); err == nil || !strings.Contains(err.Error(), strings.SplitN(arg, "=", 2)[0]) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

const docPath = "../../docs/ops/flags.md"

var docPart = regexp.MustCompile(`(?s)(<!-- generated: (\S+) -->\n).*?(<!-- end -->)`)

// The parts of the documentation between comments are made from the flags. What a row says of a flag or feature that is
// honoured is written there by hand, and stays.
func TestFlagsDoc_IsCurrent(t *testing.T) {
	doc, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]bool{}
	current := docPart.ReplaceAllStringFunc(string(doc), func(part string) string {
		m := docPart.FindStringSubmatch(part)
		parts[m[2]] = true
		return m[1] + "\n" + document(t, m[2]) + "\n" + m[3]
	})
	for command := range peers {
		if !parts[command] || !parts[command+":own"] {
			t.Errorf("%s has no parts for %s and %s:own", docPath, command, command)
		}
	}
	switch {
	case current == string(doc):
	case *update:
		if err := os.WriteFile(docPath, []byte(current), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not current: run `make generate`", docPath)
	}
}

// document returns a generated part: the flags of a command's peer, its features, or the
// other flags of the command.
func document(t *testing.T, part string) string {
	t.Helper()
	command, what, _ := strings.Cut(part, ":")
	flags := flagsOf(t, command)
	names, listed := peerNames(t, command)
	notes, _ := documented(t, part)
	// status returns the status of a flag or feature, and what is said of it
	status := func(of, name string) (string, string) {
		if p := findPeerFlag(of, name); p.name != "" {
			return p.status(), p.why
		}
		return "honoured", notes[name]
	}
	var b strings.Builder
	switch what {
	case "features":
		b.WriteString("| feature | | |\n|---|---|---|\n")
		for _, name := range featureList() {
			state, note := status("features", name)
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, state, note)
		}
	case "own":
		b.WriteString("| flag | default | |\n|---|---|---|\n")
		for _, name := range sortedNames(flags) {
			if !slices.Contains(names, name) && name != "help" && name != "version" && !flags[name].Hidden {
				fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", name, defaultOf(flags[name]), strings.ReplaceAll(flags[name].Help, "|", `\|`))
			}
		}
	default:
		fmt.Fprintf(&b, "Flags of `%s` %s. ° marks those that its `--help` does not list.\n\n| flag | | default | |\n|---|---|---|---|\n", peers[command][0], peers[command][1])
		for _, name := range names {
			hidden, value := "°", ""
			if listed[name] {
				hidden = ""
			}
			state, note := status(command, name)
			if state == "honoured" && flags[name] != nil {
				value = defaultOf(flags[name])
			}
			fmt.Fprintf(&b, "| `--%s`%s | %s | %s | %s |\n", name, hidden, state, value, note)
		}
	}
	return b.String()
}

func defaultOf(f *kong.Flag) string {
	switch {
	case f.IsBool() && (f.Default == "" || f.Default == "false"):
		return "off"
	case f.IsBool():
		return "on"
	case f.Default == "":
		return ""
	}
	return "`" + f.Default + "`"
}

func sortedNames(flags map[string]*kong.Flag) (names []string) {
	for name := range flags {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// peer returns the binary of a peer. Without it the test is skipped, or fails if
// FERULA_TEST_PEERS is set.
func peer(t *testing.T, name string) string {
	t.Helper()
	wanted := os.Getenv("FERULA_TEST_PEERS") != ""
	args := []string{"-n", name}
	if wanted {
		args = args[1:]
	}
	out, err := exec.Command("../../test/peers/build.sh", args...).Output()
	switch {
	case err == nil:
	case wanted:
		t.Fatalf("%s: %v", name, err)
	default:
		t.Skipf("needs %s: run `make interop`", name)
	}
	return strings.TrimSpace(string(out))
}

var helpFlag = regexp.MustCompile(`(?m)^ {6}--(\[no-\])?([a-z][a-z0-9._-]*)`)

// The captured flags are those of the real programs, which accept the hidden ones too, except those of earlier versions.
func TestPeerHelp_CapturedFlagsAreCurrent(t *testing.T) {
	for ours, replaced := range peers {
		program, command, _ := strings.Cut(replaced[0], " ")
		path := peer(t, program)
		args := []string{}
		if command != "" {
			args = append(args, command)
		}
		help, err := exec.Command(path, append(args, "--help")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", replaced[0], err, help)
		}
		var lines []string
		for _, m := range helpFlag.FindAllStringSubmatch(string(help), -1) {
			if m[2] != "version" {
				lines = append(lines, m[1]+m[2])
			}
		}
		slices.Sort(lines)
		if *update {
			file := "testdata/" + strings.ReplaceAll(replaced[0], " ", "-") + "-flags.txt"
			if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := fmt.Sprint(namesOf(lines)), fmt.Sprint(captured(t, ours)); got != want {
			t.Errorf("%s has\n%s, captured are\n%s", replaced[0], got, want)
		}
		names, listed := peerNames(t, ours)
		for _, name := range names {
			if listed[name] || name == "write-documentation" {
				continue
			}
			arg := "--" + name
			f := flagsOf(t, ours)[name]
			if !f.IsBool() {
				arg += "=x"
			}
			out, _ := exec.Command(path, append(args, arg, "--help")...).CombinedOutput()
			unknown, former := strings.Contains(string(out), "unknown long flag"), slices.Contains(formerFlags, name)
			if former && !unknown {
				t.Errorf("%s accepts %s, and formerFlags states that only earlier versions do: %s", replaced[0], arg, out)
			} else if !former && (unknown || f.IsBool() && strings.Contains(string(out), "expected argument")) {
				t.Errorf("%s does not accept %s: %s", replaced[0], arg, out)
			}
		}
	}
}
