package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// manCommand prints the manual page.
type manCommand struct{}

// Run is called by kong.
func (*manCommand) Run(k *kong.Context) error {
	_, err := io.WriteString(k.Stdout, manual(k.Model, manualPage))
	return err
}

var manualPage = manualText{
	Description: []string{
		"ferula collects, stores and queries Prometheus-style metrics and Pyroscope-style profiles. Each command replaces " +
			"a program and speaks its protocols: serve replaces Prometheus and a small Pyroscope; query, query-frontend, " +
			"sidecar and store replace the commands of Thanos with these names.",
		"Flags of Prometheus and Thanos keep their names and meanings. A flag that ferula does not need is accepted, with " +
			"a warning in the log. A flag that cannot be ignored without changing results is refused, with the reason. This " +
			"page does not list such flags: see docs/ops/flags.md.",
		"Every server listens on loopback unless a flag sets another address, and has no authentication unless a file " +
			"configures it.",
	},
	ExitStatus: []manualEntry{
		{Term: "0", Text: "The command succeeded, or the server was stopped by SIGTERM or SIGINT."},
		{Term: "1", Text: "The command failed. compare: the servers differ."},
		{Term: "2", Text: "The command line or a file that it names is wrong. compare: not all queries " +
			"could be compared."},
		{Term: "3", Text: "check: there are findings, and --lint-fatal is set."},
	},
	Environment: []manualEntry{
		{Term: "GOMAXPROCS", Text: "Number of CPUs to use. By default the CPU limit of the container, or the CPUs of the " +
			"machine."},
		{Term: "GOMEMLIMIT", Text: "Memory above which garbage is collected more often. By default it follows from the " +
			"memory limit of the container or of the machine."},
	},
	Examples: []manualEntry{
		{Term: "ferula serve --config.file=prometheus.yml --storage.tsdb.path=data",
			Text: "Scrape, store and query metrics; the page is at http://127.0.0.1:9490/."},
		{Term: "ferula sidecar --prometheus.url=http://127.0.0.1:9090 --tsdb.path=/var/lib/prometheus " +
			"--objstore.config-file=bucket.yml", Text: "Serve a Prometheus as a StoreAPI and upload its blocks."},
		{Term: "ferula query --endpoint=127.0.0.1:10901 --grpc-address=127.0.0.1:10911 --http-address=127.0.0.1:10912 " +
			"--query.replica-label=replica", Text: "Query stores and deduplicate replicas."},
		{Term: "source <(ferula completion bash)", Text: "Complete commands, flags and values in this shell."},
	},
	SeeAlso: "prometheus(1), promtool(1). Documents: https://github.com/ferula-io/ferula/tree/main/docs",
}

// manualText has the texts of a manual page in addition to commands and flags.
type manualText struct {
	Description []string // paragraphs
	ExitStatus  []manualEntry
	Environment []manualEntry
	Examples    []manualEntry // a command line, and what it does
	SeeAlso     string
}

// manualEntry is a term and its text.
type manualEntry struct{ Term, Text string }

// manual returns a manual page of section 1 in the macros of man(7). It has no version and
// no date, so that it changes with commands and flags only.
func manual(app *kong.Application, page manualText) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".\\\" Made by `%s man`.\n.TH %s 1 \"\" %s \"User Commands\"\n", app.Name,
		strings.ToUpper(app.Name), app.Name)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", app.Name,
		roff(strings.ToLower(app.Help[:1])+strings.TrimSuffix(app.Help[1:], ".")))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n\\fB%s\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n", app.Name)
	for i, paragraph := range page.Description {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		b.WriteString(line(paragraph))
	}
	b.WriteString(".SH OPTIONS\n")
	manualFlags(&b, app.Flags)
	b.WriteString(".SH COMMANDS\n")
	walk(app.Node, func(n *kong.Node) {
		if n.Parent == nil {
			return
		}
		fmt.Fprintf(&b, ".SS \"%s\"\n%s", roff(usage(app.Name, n)), line(n.Help))
		manualFlags(&b, n.Flags)
	})
	entries(&b, "EXIT STATUS", page.ExitStatus)
	entries(&b, "ENVIRONMENT", page.Environment)
	entries(&b, "EXAMPLES", page.Examples)
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s", line(page.SeeAlso))
	return b.String()
}

// usage returns the command line of a command without its flags.
func usage(program string, n *kong.Node) string {
	parts := append([]string{program}, pathOf(n)...)
	for _, arg := range n.Positional {
		parts = append(parts, arg.Summary())
	}
	if len(children(n)) > 0 {
		parts = append(parts, "COMMAND")
	}
	return strings.Join(parts, " ")
}

func manualFlags(b *strings.Builder, flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		name := "--" + f.Name
		if f.IsBool() && f.Tag != nil && f.Tag.Negatable != "" {
			name = "--[no-]" + f.Name
		}
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		term := `\fB` + roff(name) + `\fR`
		if !f.IsBool() && !f.IsCounter() {
			term += `=\fI` + roff(f.FormatPlaceHolder()) + `\fR`
		}
		help := f.Help
		switch {
		case f.IsBool() && f.Default == "true":
			help += " On by default."
		case f.PlaceHolder != "" && f.Default != "":
			help += " Default: " + f.Default + "."
		}
		fmt.Fprintf(b, ".TP\n%s\n%s", term, line(help))
	}
}

func entries(b *strings.Builder, title string, all []manualEntry) {
	fmt.Fprintf(b, ".SH %s\n", title)
	for _, e := range all {
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s", roff(e.Term), line(e.Text))
	}
}

// line returns a text as one line of a paragraph.
func line(text string) string { return roff(strings.Join(strings.Fields(text), " ")) + "\n" }

// roff escapes a text for man(7): backslashes, quotes, dashes that must remain copyable,
// and a control character at the beginning.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `"`, `\(dq`, `'`, `\(aq`, "`", "\\`").Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

// children returns the visible commands below a command.
func children(n *kong.Node) (visible []*kong.Node) {
	for _, child := range n.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			visible = append(visible, child)
		}
	}
	return visible
}

// walk calls visit with the program and every visible command, parents first.
func walk(n *kong.Node, visit func(n *kong.Node)) {
	visit(n)
	for _, child := range children(n) {
		walk(child, visit)
	}
}

// pathOf returns the names of a command and its parents, without the name of the program.
func pathOf(n *kong.Node) []string {
	if n.Parent == nil {
		return nil
	}
	return append(pathOf(n.Parent), n.Name)
}
