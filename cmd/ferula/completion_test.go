package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// printed runs a command line that prints a document, and returns what it printed.
func printed(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	parser, err := newParser("ferula", &commands{}, kong.Exit(func(int) {}), kong.Writers(&out, &bytes.Buffer{}))
	if err != nil {
		t.Fatal(err)
	}
	k, ignored, err := parseArgs(parser, args)
	if err != nil {
		return "", err
	}
	err = k.Run(ignored)
	return out.String(), err
}

// TestMain makes the test a ferula for the completion scripts, which run the program.
func TestMain(m *testing.M) {
	if os.Getenv("FERULA_COMPLETES") != "" {
		os.Exit(run(os.Args))
	}
	os.Exit(m.Run())
}

// script writes the completion script of a shell to a file, and puts the program that it runs on the path.
func script(t *testing.T, shell string) (file string) {
	t.Helper()
	program := "#!/bin/sh\nFERULA_COMPLETES=1 exec " + os.Args[0] + " \"$@\"\n"
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ferula"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	text, err := printed(t, "completion", shell)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "_ferula")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCompletion_AnotherShellIsAnErrorThatListsTheShells(t *testing.T) {
	for _, args := range [][]string{{"completion", "tcsh"}, {"completion"}, {"man", "x"}} {
		if _, err := printed(t, args...); err == nil || report(err, args[0]) != exitUsage || (args[0] == "completion" && len(args) > 1 && !strings.Contains(err.Error(), "fish")) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// completed are the words before the cursor, words that bash and fish offer, and words that
// they never offer.
var completed = []struct {
	words  []string
	offers []string
	never  []string
}{
	{[]string{""}, []string{"serve", "query", "query-frontend", "sidecar", "store", "read", "compare", "backtest", "summarize", "profiles", "check", "completion", "man"}, []string{"config", "--web.listen-address="}},
	{[]string{"query"}, []string{"query", "query-frontend"}, []string{"serve"}},
	{[]string{"--ver"}, []string{"--version"}, nil},
	{[]string{"check", ""}, []string{"config", "rules", "web-config"}, []string{"serve"}},
	{[]string{"profiles", ""}, []string{"compact"}, []string{"serve"}},
	{[]string{"profiles", "compact", "--del"}, []string{"--delete-delay"}, []string{"--wait"}},
	{[]string{"completion", "f"}, []string{"fish"}, []string{"bash"}},
	{[]string{"serve", "--config.f"}, []string{"--config.file"}, []string{"--web.listen-address"}},
	{[]string{"serve", "--web.enable-l"}, []string{"--web.enable-lifecycle"}, nil},
	{[]string{"serve", "--no-web.enable-l"}, []string{"--no-web.enable-lifecycle"}, nil},
	{[]string{"serve", "--web.cons"}, nil, []string{"--web.console.templates"}}, // without effect, so not offered
	{[]string{"serve", "--ver"}, nil, []string{"--version"}},
	{[]string{"serve", "--log.format", "j"}, []string{"json"}, []string{"logfmt"}},
	{[]string{"query", "--deduplication.func", ""}, []string{"chain", "penalty"}, []string{"serve"}},
	{[]string{"query-frontend", "--query-range.split"}, []string{"--query-range.split-interval"}, nil},
	{[]string{"check", "config", "--lin"}, []string{"--lint", "--lint-fatal"}, nil},
}

func TestCompletion_BashOffersWhatTheProgramAccepts(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	file := script(t, "bash")
	// Bash splits --flag=value into three words.
	for _, c := range append(slices.Clone(completed), completed[0], struct{ words, offers, never []string }{[]string{"serve", "--log.format", "=", "j"}, []string{"json"}, []string{"logfmt"}},
		struct{ words, offers, never []string }{[]string{"serve", "--log.format", "="}, []string{"json", "logfmt"}, []string{"--config.file"}},
		struct{ words, offers, never []string }{[]string{"serve", "--config.file", "="}, nil, []string{"--config.file", "serve"}}) {
		args := append([]string{"-c", `. "$0"; COMP_WORDS=(ferula "$@"); COMP_CWORD=$#; _ferula; printf '%s\n' "${COMPREPLY[@]}"`, file}, c.words...)
		out, err := exec.Command("bash", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		checkOffers(t, c.words, string(out), c.offers, c.never)
	}
}

// checkOffers compares the lines that a shell offers.
func checkOffers(t *testing.T, words []string, out string, offers, never []string) {
	t.Helper()
	got := strings.Split(strings.TrimSpace(strings.ReplaceAll(out, "=\n", "\n")), "\n")
	for _, want := range offers {
		if !slices.Contains(got, want) {
			t.Errorf("%q: %q is not offered: %q", words, want, got)
		}
	}
	for _, other := range never {
		if slices.Contains(got, other) {
			t.Errorf("%q: %q is offered", words, other)
		}
	}
}

func TestPeerFish_CompletionOffersWhatTheProgramAccepts(t *testing.T) {
	if _, err := exec.LookPath("fish"); err != nil {
		t.Skip("needs fish")
	}
	file := script(t, "fish")
	for _, c := range completed {
		cmd := exec.Command("fish", "--no-config", "-c", `source $argv[1]; complete -C "$argv[2]" | string replace -r '\t.*' ''; true`, file, "ferula "+strings.Join(c.words, " "))
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		checkOffers(t, c.words, string(out), c.offers, c.never)
	}
}

// zshSetup makes a terminal's shell write its offers to $OUT, followed by END.
const zshSetup = `
autoload -Uz compinit && compinit -u -D
source $SCRIPT
compadd() {
	if [[ ${@[(r)-[OAD]]} == -* ]]; then builtin compadd "$@"; return; fi
	local -a hits
	builtin compadd -O hits "$@"
	print -rl -- $hits >>$OUT
	builtin compadd "$@"
}
capture() { _main_complete; print -r -- END >>$OUT }
zle -C capture complete-word capture
bindkey '^I' capture
print -r -- READY >>$OUT
`

// zshDriver types a line and a tab into such a shell.
const zshDriver = `
zmodload zsh/zpty
waitfor() {
	for i in {1..600}; do
		while zpty -r -t z line; do :; done
		grep -qx $1 $OUT 2>/dev/null && return
		sleep .05
	done
	exit 1
}
zpty z zsh -f -i
zpty -w z "source $SETUP"
waitfor READY
zpty -n -w z "$1"$'\t'
waitfor END
zpty -d z
`

func TestPeerZsh_CompletionOffersWhatTheProgramAccepts(t *testing.T) {
	if _, err := exec.LookPath("zsh"); err != nil {
		t.Skip("needs zsh")
	}
	file, dir := script(t, "zsh"), t.TempDir()
	setup := filepath.Join(dir, "setup")
	if err := os.WriteFile(setup, []byte(zshSetup), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range completed {
		offered := filepath.Join(dir, fmt.Sprint(i))
		cmd := exec.Command("zsh", "-f", "-c", zshDriver, "zsh", "ferula "+strings.Join(c.words, " "))
		cmd.Env = append(os.Environ(), "TERM=xterm", "HOME="+dir, "SCRIPT="+file, "SETUP="+setup, "OUT="+offered)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", c.words, err, out)
		}
		text, err := os.ReadFile(offered)
		if err != nil {
			t.Fatal(err)
		}
		checkOffers(t, c.words, string(text), c.offers, c.never)
	}
}

func TestManual_HasEveryCommandAndFlagOfTheHelp(t *testing.T) {
	current, err := printed(t, "man")
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parserOf(t, &commands{}).Model.Leaves(true) {
		_, section, found := strings.Cut(current, ".SS \"ferula "+strings.ReplaceAll(leaf.Path(), "-", `\-`))
		section, _, _ = strings.Cut(section, ".SS ")
		if !found {
			t.Errorf("no section for %s", leaf.Path())
		}
		for _, f := range leaf.Flags {
			if name := strings.ReplaceAll(f.Name, "-", `\-`) + `\fR`; !f.Hidden && !strings.Contains(section, name) {
				t.Errorf("%s: no --%s", leaf.Path(), f.Name)
			}
		}
	}
	for _, want := range []string{".SS \"ferula query\\-frontend\"", ".SS \"ferula check config <file> ...\"", `\fB\-\-[no\-]query.partial\-response\fR`, `\fB\-\-config.file\fR=`, ".SH EXIT STATUS"} {
		if !strings.Contains(current, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(current, `web.console`) {
		t.Error("flags without effect are listed")
	}
}

func TestManual_GroffReadsItWithoutWarnings(t *testing.T) {
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("needs groff")
	}
	page, err := printed(t, "man")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("groff", "-man", "-Tascii", "-ww")
	cmd.Stdin = strings.NewReader(page)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) || err != nil {
		t.Fatalf("%v: %s", err, failed.Stderr)
	}
	plain := regexp.MustCompile("\x1b\\[[0-9;]*m|.\x08").ReplaceAllString(string(out), "")
	for _, want := range []string{"--query-range.split-interval", "ferula serve"} {
		if !strings.Contains(plain, want) {
			t.Errorf("the page does not show %q", want)
		}
	}
}

// Texts with characters that shells and roff treat specially are shown as they are.
func TestCompletion_SpecialCharactersStay(t *testing.T) {
	var cli struct {
		Run struct {
			A string `name:"a.b" enum:"x,y" default:"x" help:"It's [a] \"b\": c\\d $(e) ${enum}. Second sentence."`
			D string `name:"d" placeholder:"DIR"`
			F string `name:"f" placeholder:"FILE" short:"o"`
		} `cmd:"" help:"Don't: [run]."`
	}
	parser, err := kong.New(&cli, kong.Name("it"), kong.Description("A program."))
	if err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"r":                "run\tDon't: [run]\n",
		"run --a":          "--a.b=\tIt's [a] \"b\": c\\d $(e) x,y\n",
		"run --a.b=y":      "--a.b=y\t\n",
		"run --a.b ":       "x\t\ny\t\n",
		"run --d ":         ":directories\n",
		"run --f=/x":       ":files\n",
		"run -o ":          ":files\n",
		"run --other x --": "--help\tShow context-sensitive help\n--a.b=\tIt's [a] \"b\": c\\d $(e) x,y\n--d=\t\n--f=\t\n",
	} {
		var out strings.Builder
		if err := offer(&out, parser.Model, strings.Split(words, " ")); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", words, out.String(), err)
		}
	}
	if page := manual(parser.Model); !strings.Contains(page, "It\\(aqs [a] \\(dqb\\(dq: c\\ed $(e) x,y. Second sentence.\n") {
		t.Error(page)
	}
}
