package main

import (
	"embed"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand prints a script for a shell. The script runs this program with offerWords to complete a line.
type completionCommand struct {
	Shell string `arg:"" enum:"${shells}" help:"Shell: ${enum}."`
}

// shells are the shells that have a script.
const shells = "bash,zsh,fish"

func (c *completionCommand) Run(k *kong.Context) error {
	script, err := scripts.ReadFile("completion." + c.Shell)
	if err == nil {
		_, err = k.Stdout.Write(script)
	}
	return err
}

// scripts are the scripts, by shell. Where nothing is offered, bash completes names of files. It splits --flag=value at
// the =.
//
//go:embed completion.bash completion.zsh completion.fish
var scripts embed.FS

// offerWords is the first argument of a run that offers what may be the last of the arguments after it. The scripts
// have it, too.
const offerWords = "__offer"

// offer writes a line for each word that may take the place of the last one: the word, a tab and its meaning. The only
// line :files or :directories stands for names of files. An argument = belongs to the flag before it.
func offer(to io.Writer, app *kong.Application, words []string) error {
	var text strings.Builder
	n, flag, current, prefix := app.Node, (*kong.Flag)(nil), "", ""
	for i, word := range words {
		last := i == len(words)-1
		name, value, assigned := strings.Cut(word, "=")
		switch {
		case word == "=":
		case last && flag != nil:
			current = word
		case flag != nil:
			flag = nil
		case assigned && last:
			flag, current, prefix = takingFlag(n, name), value, name+"="
		case last:
			current = word
		case strings.HasPrefix(word, "-") && !assigned:
			flag = takingFlag(n, name)
		default:
			n = child(n, word)
		}
	}
	add := func(word, help string) {
		if strings.HasPrefix(word, current) {
			fmt.Fprintf(&text, "%s%s\t%s\n", prefix, word, firstSentence(help))
		}
	}
	if flag != nil {
		for _, value := range choicesOf(flag.Value) {
			add(value, "")
		}
		if text.Len() == 0 {
			text.WriteString(pathKind(flag))
		}
	} else {
		offerArguments(n, current, add, &text)
	}
	_, err := io.WriteString(to, text.String())
	return err
}

// offerArguments offers the commands and arguments of a command, and its flags after a dash or if there is nothing
// else.
func offerArguments(n *kong.Node, current string, add func(word, help string), text *strings.Builder) {
	if !strings.HasPrefix(current, "-") {
		for _, c := range children(n) {
			add(c.Name, c.Help)
		}
		for _, arg := range n.Positional {
			for _, value := range choicesOf(arg) {
				add(value, "")
			}
			if arg.Enum == "" {
				text.WriteString(":files\n")
			}
		}
		if text.Len() > 0 {
			return
		}
	}
	for _, f := range acceptedFlags(n) {
		if takesValue(f) {
			add("--"+f.Name+"=", f.Help)
			continue
		}
		add("--"+f.Name, f.Help)
		if f.Tag != nil && f.Tag.Negatable != "" {
			add("--no-"+f.Name, "Not: "+f.Help)
		}
	}
}

// child returns the command with a name below n; n if there is none.
func child(n *kong.Node, name string) *kong.Node {
	for _, c := range children(n) {
		if c.Name == name {
			return c
		}
	}
	return n
}

// acceptedFlags returns the flags that a command accepts: its own and the flags of its parents. Only the program itself
// has --version.
func acceptedFlags(n *kong.Node) (flags []*kong.Flag) {
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if f.Name != "version" || n.Parent == nil {
				flags = append(flags, f)
			}
		}
	}
	return flags
}

func takesValue(f *kong.Flag) bool { return !f.IsBool() && !f.IsCounter() }

// takingFlag returns the flag of a command that a word names, if it takes a value; else nil.
func takingFlag(n *kong.Node, word string) *kong.Flag {
	for _, f := range acceptedFlags(n) {
		if takesValue(f) && (word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short)) {
			return f
		}
	}
	return nil
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

// pathKind returns the line that offer writes for a flag whose value is a file or a directory,
// or "" if it is not a path.
func pathKind(f *kong.Flag) string {
	switch {
	case f.PlaceHolder == "FILE", f.PlaceHolder == "PATTERN", strings.HasSuffix(f.Name, ".file"),
		strings.HasSuffix(f.Name, "-file"):
		return ":files\n"
	case f.PlaceHolder == "DIR", f.PlaceHolder == "FOLDER", strings.HasSuffix(f.Name, ".path"),
		strings.HasSuffix(f.Name, "-dir"):
		return ":directories\n"
	}
	return ""
}

// firstSentence returns a help text up to its first full stop, without it.
func firstSentence(help string) string {
	first, _, _ := strings.Cut(strings.Join(strings.Fields(help), " "), ". ")
	return strings.TrimSuffix(first, ".")
}
