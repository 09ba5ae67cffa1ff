package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

// word is a flag as a shell completes it.
type word struct {
	name     string // with dashes
	help     string // first sentence of its help text
	takes    bool   // a value follows
	values   []string
	path     string // what the value names: "file", "directory" or ""
	repeated bool
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

// wordsOf returns the flags that a command accepts: its own and the flags of its parents. A
// switch that can be negated gives two words. Only the program itself offers --version.
func wordsOf(n *kong.Node) (words []word) {
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if f.Name == "version" && n.Parent != nil {
				continue
			}
			w := word{name: "--" + f.Name, help: firstSentence(f.Help), takes: !f.IsBool() &&
				!f.IsCounter(), repeated: f.IsCumulative()}
			if w.takes {
				w.values, w.path = choicesOf(f.Value), pathKind(f)
			}
			words = append(words, w)
			if f.IsBool() && f.Tag != nil && f.Tag.Negatable != "" {
				words = append(words, word{name: "--no-" + f.Name, help: "Not: " + w.help})
			}
		}
	}
	return words
}

// choicesOf returns the allowed values of a flag or an argument; none if any value is
// allowed.
func choicesOf(v *kong.Value) (values []string) {
	for value := range strings.SplitSeq(v.Enum, ",") {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, value)
		}
	}
	return values
}

// arguments returns the allowed values of a command's arguments. files reports whether the
// arguments are names of files.
func arguments(n *kong.Node) (values []string, files bool) {
	for _, arg := range n.Positional {
		chosen := choicesOf(arg)
		values, files = append(values, chosen...), files || len(chosen) == 0
	}
	return values, files
}

// pathKind returns what the value of a flag names in the file system: "file", "directory",
// or "" if it is not a path.
func pathKind(f *kong.Flag) string {
	switch {
	case f.PlaceHolder == "FILE", f.PlaceHolder == "PATTERN", strings.HasSuffix(f.Name, ".file"),
		strings.HasSuffix(f.Name, "-file"):
		return "file"
	case f.PlaceHolder == "DIR", f.PlaceHolder == "FOLDER", strings.HasSuffix(f.Name, ".path"),
		strings.HasSuffix(f.Name, "-dir"):
		return "directory"
	}
	return ""
}

// firstSentence returns a help text up to its first full stop, without it.
func firstSentence(help string) string {
	first, _, _ := strings.Cut(strings.Join(strings.Fields(help), " "), ". ")
	return strings.TrimSuffix(first, ".")
}
