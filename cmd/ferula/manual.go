package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

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
