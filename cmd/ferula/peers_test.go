package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/cmd/ferula/peerflags"
)

// update makes TestFlagsDoc_IsCurrent write the documentation: `make generate`.
var update = flag.Bool("update", false, "write docs/ops/flags.md")

func parserOf(t *testing.T, cli *commands) *kong.Kong {
	t.Helper()
	parser, err := newParser(cli, kong.Exit(func(int) {}), kong.Writers(&bytes.Buffer{}, &bytes.Buffer{}))
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
	for _, row := range append(append(ignored, ignoredFeatures(cli.Serve.Features)...), ignoredQueryFeatures(cli.Query.Features)...) {
		names = append(names, row.Name)
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

// captured returns the flags of a peer's --help, which are committed as one name per line,
// with the prefix [no-] for switches.
func captured(t *testing.T, table peerflags.Table) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("testdata/" + strings.ReplaceAll(table.Peer, " ", "-") + "-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	return namesOf(strings.Fields(string(text)))
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

func TestTables_HaveExactlyTheFlagsOfThePeersHelp(t *testing.T) {
	for _, table := range peerflags.Tables() {
		listed := captured(t, table)
		if len(listed) < 40 {
			t.Errorf("only %d flags of %s", len(listed), table.Peer)
		}
		for name := range listed {
			if _, ok := table.Find(name); !ok {
				t.Errorf("%s has no row for --%s", table.Command, name)
			}
		}
		seen := map[string]bool{}
		for _, row := range table.Rows {
			if _, ok := listed[row.Name]; ok == row.Hidden {
				t.Errorf("%s --%s: listed by %s: %v, hidden: %v", table.Command, row.Name, table.Peer, ok, row.Hidden)
			}
			if row.Status != peerflags.Honoured && row.Note == "" {
				t.Errorf("%s --%s is %s without a reason", table.Command, row.Name, row.Status)
			}
			if seen[row.Name] {
				t.Errorf("%s has two rows for --%s", table.Command, row.Name)
			}
			seen[row.Name] = true
		}
	}
}

// Kinds are those of the peer, so that the peer's command lines are parsed in the same
// way.
func TestTables_EveryRowIsAFlagOfTheSameKind(t *testing.T) {
	for _, table := range peerflags.Tables() {
		flags := flagsOf(t, table.Command)
		for name, isSwitch := range captured(t, table) {
			f := flags[name]
			if f == nil {
				t.Errorf("%s has no flag --%s", table.Command, name)
				continue
			}
			if f.IsBool() != isSwitch {
				t.Errorf("%s --%s is a switch: %v, of %s: %v", table.Command, name, f.IsBool(), table.Peer, isSwitch)
			}
			if isSwitch && f.Tag.Negatable == "" {
				t.Errorf("%s has no --no-%s", table.Command, name)
			}
		}
		for _, row := range table.Rows {
			if flags[row.Name] == nil {
				t.Errorf("%s has no flag --%s", table.Command, row.Name)
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
	compareNames(t, "flags", flags, peerflags.Serve().Rows)
	compareNames(t, "features", features, peerflags.Serve().Features)
}

func compareNames(t *testing.T, what string, source []string, rows []peerflags.Row) {
	t.Helper()
	if len(source) < 30 {
		t.Errorf("only %d %s in the source", len(source), what)
	}
	for _, name := range source {
		if !slices.ContainsFunc(rows, func(r peerflags.Row) bool { return r.Name == name }) {
			t.Errorf("%s: no row for %s", what, name)
		}
	}
	for _, row := range rows {
		if !slices.Contains(source, row.Name) {
			t.Errorf("%s: Prometheus has no %s", what, row.Name)
		}
	}
}

func TestServeFeatures_HonouredOnesAreThoseOfTheTable(t *testing.T) {
	for _, row := range peerflags.Serve().Features {
		if _, ok := features[row.Name]; ok != (row.Status == peerflags.Honoured) {
			t.Errorf("%s is %s, and has a function: %v", row.Name, row.Status, ok)
		}
	}
	for name := range features {
		if _, ok := peerflags.Serve().FindFeature(name); !ok {
			t.Errorf("no row for the feature %s", name)
		}
	}
}

func TestServeFeatures_RefusedAreErrorsAndUnknownAreIgnoredAsInPrometheus(t *testing.T) {
	for _, name := range []string{"st-storage", "st-synthesis", "otlp-deltatocumulative,otlp-native-delta-ingestion"} {
		if err := optionsOf(t, "serve", "--enable-feature=exemplar-storage,"+name); err == nil || !strings.Contains(err.Error(), strings.Split(name, ",")[0]) {
			t.Errorf("%s: %v", name, err)
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

// sample returns a value that the kind of a row accepts.
func sample(row peerflags.Row) string {
	switch row.Kind {
	case peerflags.Number:
		return "5e3"
	case peerflags.Duration:
		return "1h30m"
	case peerflags.Size:
		return "64MB"
	}
	return "x"
}

func TestCheckPeerFlags_InertAreNamedAndRefusedAreErrors(t *testing.T) {
	for _, table := range peerflags.Tables() {
		for _, row := range table.Rows {
			arg := "--" + row.Name
			if row.Kind != peerflags.Switch {
				arg += "=" + sample(row)
			}
			switch row.Status {
			case peerflags.Inert:
				if names := ignoredNames(t, table.Command, arg, arg); !slices.Equal(names, []string{row.Name}) {
					t.Errorf("%s %s: %q", table.Command, arg, names)
				}
			case peerflags.Refused:
				_, err := parse(t, table.Command, arg)
				_, negated := parse(t, table.Command, "--no-"+row.Name)
				if row.Kind == peerflags.Switch && err == nil {
					err, negated = negated, err // refused if it is turned off
				}
				if err == nil || !strings.Contains(err.Error(), "--"+row.Name) || !strings.Contains(err.Error(), row.Note) {
					t.Errorf("%s %s: %v", table.Command, arg, err)
				}
				if row.Kind == peerflags.Switch && negated != nil {
					t.Errorf("%s %s: the default is an error: %v", table.Command, row.Name, negated)
				}
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

// The parts of the documentation between comments are made from the tables.
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
	for _, table := range peerflags.Tables() {
		if !parts[table.Command] || !parts[table.Command+":own"] {
			t.Errorf("%s has no parts for %s and %s:own", docPath, table.Command, table.Command)
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
	table := tableOf(command)
	flags := flagsOf(t, command)
	var b strings.Builder
	switch what {
	case "features":
		b.WriteString("| feature | | |\n|---|---|---|\n")
		for _, row := range table.Features {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row.Name, row.Status, row.Note)
		}
	case "own":
		b.WriteString("| flag | default | |\n|---|---|---|\n")
		for _, name := range sortedNames(flags) {
			if _, ok := table.Find(name); !ok && name != "help" && name != "version" && !flags[name].Hidden {
				fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", name, defaultOf(flags[name]), strings.ReplaceAll(flags[name].Help, "|", `\|`))
			}
		}
	default:
		fmt.Fprintf(&b, "Flags of `%s` %s. ° marks those that its `--help` does not list.\n\n| flag | | default | |\n|---|---|---|---|\n", table.Peer, table.Version)
		for _, row := range table.Rows {
			hidden, value := "", ""
			if row.Hidden {
				hidden = "°"
			}
			if row.Status == peerflags.Honoured {
				value = defaultOf(flags[row.Name])
			}
			fmt.Fprintf(&b, "| `--%s`%s | %s | %s | %s |\n", row.Name, hidden, row.Status, value, row.Note)
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
	for _, table := range peerflags.Tables() {
		program, command, _ := strings.Cut(table.Peer, " ")
		path := peer(t, program)
		args := []string{}
		if command != "" {
			args = append(args, command)
		}
		help, err := exec.Command(path, append(args, "--help")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", table.Peer, err, help)
		}
		var lines []string
		for _, m := range helpFlag.FindAllStringSubmatch(string(help), -1) {
			if m[2] != "version" {
				lines = append(lines, m[1]+m[2])
			}
		}
		slices.Sort(lines)
		if *update {
			file := "testdata/" + strings.ReplaceAll(table.Peer, " ", "-") + "-flags.txt"
			if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := fmt.Sprint(namesOf(lines)), fmt.Sprint(captured(t, table)); got != want {
			t.Errorf("%s has\n%s, captured are\n%s", table.Peer, got, want)
		}
		for _, row := range table.Rows {
			if !row.Hidden || row.Name == "write-documentation" {
				continue
			}
			arg := "--" + row.Name
			f := flagsOf(t, table.Command)[row.Name]
			if !f.IsBool() {
				arg += "=x"
			}
			out, _ := exec.Command(path, append(args, arg, "--help")...).CombinedOutput()
			unknown := strings.Contains(string(out), "unknown long flag")
			if row.Former && !unknown {
				t.Errorf("%s accepts %s, and the table states that only earlier versions do: %s", table.Peer, arg, out)
			} else if !row.Former && (unknown || f.IsBool() && strings.Contains(string(out), "expected argument")) {
				t.Errorf("%s does not accept %s: %s", table.Peer, arg, out)
			}
		}
	}
}
