package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// manCommand prints the manual page.
type manCommand struct{}

// manualPage is the page without the flags and commands, which replace a line each.
//
//go:embed manual.roff
var manualPage string

func (*manCommand) Run(k *kong.Context) error {
	_, err := io.WriteString(k.Stdout, manual(k.Model))
	return err
}

// manual returns a manual page of section 1 in the macros of man(7). It has no version and
// no date, so that it changes with commands and flags only.
func manual(app *kong.Application) string {
	var options, commands strings.Builder
	manualFlags(&options, app.Flags)
	walk(app.Node, func(n *kong.Node) {
		if n.Parent != nil {
			fmt.Fprintf(&commands, ".SS \"%s\"\n%s", roff(usage(app.Name, n)), line(n.Help))
			manualFlags(&commands, n.Flags)
		}
	})
	return strings.NewReplacer("{OPTIONS}\n", options.String(), "{COMMANDS}\n", commands.String()).Replace(manualPage)
}

// usage returns the command line of a command without its flags.
func usage(program string, n *kong.Node) string {
	parts := []string{program, n.Path()}
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
		if takesValue(f) {
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
