package main

import (
	"cmp"
	_ "embed"
	"strings"

	"github.com/alecthomas/kong"
)

//go:embed help.txt
var helpText string

// helpTexts returns the texts of help.txt, by flag. Those of one command begin with its name and a space.
func helpTexts() map[string]string {
	texts, command, name := map[string]string{}, "", ""
	for line := range strings.SplitSeq(helpText, "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			command = strings.Trim(line, "[]") + " "
		case line[0] == ' ':
			texts[name] = strings.TrimSpace(texts[name] + line[1:])
		default:
			name = command + line
		}
	}
	return texts
}

// setHelp gives the flags of all commands their texts.
func setHelp(parser *kong.Kong) {
	texts := helpTexts()
	for _, command := range parser.Model.Leaves(false) {
		for _, f := range command.Flags {
			text := cmp.Or(texts[command.Path()+" "+f.Name], texts[f.Name])
			values := strings.NewReplacer("${enum}", f.Enum, "${default}", f.Default, "${features}", featureNames())
			f.Help = cmp.Or(values.Replace(text), f.Help)
		}
	}
}
