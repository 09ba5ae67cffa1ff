package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// shells are the shells that completionScript knows.
const shells = "bash,zsh,fish"

// completionScript returns the script that completes the commands, the flags and their values in
// a shell. A shell that is not in shells is an error.
func completionScript(shell string, app *kong.Application) (string, error) {
	switch shell {
	case "bash":
		return bash(app), nil
	case "zsh":
		return zsh(app), nil
	case "fish":
		return fish(app), nil
	}
	return "", fmt.Errorf("no completion for the shell %q; known are %s", shell, shells)
}

// bash returns a script of one function. The function finds the command among the words
// before the cursor. It offers the values of the flag before the cursor or, if there is
// none, commands and flags. Where it offers nothing, bash completes names of files.
func bash(app *kong.Application) string {
	var commands, offers, values strings.Builder
	walk(app.Node, func(n *kong.Node) {
		path := strings.Join(pathOf(n), " ")
		if n.Parent != nil {
			fmt.Fprintf(&commands, "\t\t%s) command=%s ;;\n", quoted(strings.Join(pathOf(n.Parent), " ")+" "+n.Name),
				quoted(path))
		}
		var words []string
		for _, child := range children(n) {
			words = append(words, child.Name)
		}
		chosen, files := arguments(n)
		words = append(words, chosen...)
		for _, w := range wordsOf(n) {
			if w.takes {
				words = append(words, w.name+"=")
			} else {
				words = append(words, w.name)
			}
			if len(w.values) > 0 {
				fmt.Fprintf(&values, "\t\t%s) values=%s ;;\n", quoted(path+" "+w.name), quoted(strings.Join(w.values, " ")))
			}
		}
		fmt.Fprintf(&offers, "\t%s)\n\t\twords=%s\n\t\tfiles=%t\n\t\t;;\n", quoted(path), quoted(strings.Join(words, " ")),
			files)
	})
	return strings.NewReplacer("PROGRAM", app.Name, "COMMANDS\n", commands.String(), "OFFERS\n", offers.String(),
		"VALUES\n", values.String()).Replace(bashFrame)
}

const bashFrame = `# Completion of PROGRAM in bash:
#
#	source <(PROGRAM completion bash)
_PROGRAM() {
	local cur=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD-1]} command='' words='' values='' files=false i
	if [[ $cur == = ]]; then # bash splits --flag=value at the =
		cur=''
	elif [[ $flag == = ]]; then
		flag=${COMP_WORDS[COMP_CWORD-2]}
	fi
	for ((i = 1; i < COMP_CWORD; i++)); do
		case "$command ${COMP_WORDS[i]}" in
COMMANDS
		esac
	done
	case "$command" in
OFFERS
	esac
	COMPREPLY=()
	if [[ " $words " == *" $flag= "* ]]; then
		case "$command $flag" in
VALUES
		esac
		COMPREPLY=($(compgen -W "$values" -- "$cur"))
		return
	fi
	if [[ $files == true && $cur != -* ]]; then
		return
	fi
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
	if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
		compopt -o nospace 2>/dev/null
	fi
}
complete -o default -F _PROGRAM PROGRAM
`

// zsh returns one function for each command.
func zsh(app *kong.Application) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %s\n# Completion of %s in zsh:\n#\n#\tsource <(%s completion zsh)\n#\n# or as a file _%s "+
		"in a directory of $fpath.\n", app.Name, app.Name, app.Name, app.Name)
	walk(app.Node, func(n *kong.Node) {
		function := "_" + strings.Join(append([]string{app.Name}, pathOf(n)...), "_")
		fmt.Fprintf(&b, "\n%s() {\n", function)
		below := children(n)
		if len(below) > 0 {
			b.WriteString("\tlocal curcontext=$curcontext state line\n\tlocal -A opt_args\n\tlocal -a commands\n\t_arguments -C")
		} else {
			b.WriteString("\t_arguments")
		}
		for _, w := range wordsOf(n) {
			fmt.Fprintf(&b, " \\\n\t\t%s", quoted(w.zsh()))
		}
		chosen, files := arguments(n)
		switch {
		case len(chosen) > 0:
			fmt.Fprintf(&b, " \\\n\t\t%s", quoted("1: :("+strings.Join(chosen, " ")+")"))
		case files:
			fmt.Fprintf(&b, " \\\n\t\t%s", quoted("*: :_files"))
		}
		if len(below) == 0 {
			b.WriteString("\n}\n")
			return
		}
		b.WriteString(" \\\n\t\t'1: :->command' \\\n\t\t'*:: :->rest' && return\n" +
			"\tcase $state in\n\tcommand)\n\t\tcommands=(\n")
		for _, child := range below {
			fmt.Fprintf(&b, "\t\t\t%s\n", quoted(child.Name+":"+zshText(firstSentence(child.Help))))
		}
		b.WriteString("\t\t)\n\t\t_describe -t commands command commands\n\t\t;;\n\trest)\n\t\tcase $line[1] in\n")
		for _, child := range below {
			fmt.Fprintf(&b, "\t\t%s) %s_%s ;;\n", child.Name, function, child.Name)
		}
		b.WriteString("\t\tesac\n\t\t;;\n\tesac\n}\n")
	})
	fmt.Fprintf(&b, "\nif [[ $funcstack[1] == _%s ]]; then\n\t_%s \"$@\"\nelse\n\tcompdef _%s %s\nfi\n", app.Name,
		app.Name, app.Name, app.Name)
	return b.String()
}

// zsh returns a flag as _arguments reads it.
func (w word) zsh() string {
	spec := w.name
	if w.takes {
		spec += "="
	}
	if w.repeated {
		spec = "*" + spec
	}
	spec += "[" + zshText(w.help) + "]"
	switch {
	case len(w.values) > 0:
		spec += ":value:(" + strings.Join(w.values, " ") + ")"
	case w.path == "file":
		spec += ":file:_files"
	case w.path == "directory":
		spec += ":directory:_files -/"
	case w.takes:
		spec += ":value: "
	}
	return spec
}

// zshText returns a text for a description of _arguments or _describe.
func zshText(text string) string {
	return strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `:`, `\:`).Replace(text)
}

// fish returns a line for each command and flag.
func fish(app *kong.Application) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Completion of %s in fish:\n#\n#\t%s completion fish | source\ncomplete -c %s -f\n", app.Name,
		app.Name, app.Name)
	walk(app.Node, func(n *kong.Node) {
		condition := fishCondition(n)
		line := func(format string, args ...any) {
			fmt.Fprintf(&b, "complete -c %s -n %s %s\n", app.Name, fishQuoted(condition), fmt.Sprintf(format, args...))
		}
		for _, child := range children(n) {
			line("-a %s -d %s", child.Name, fishQuoted(firstSentence(child.Help)))
		}
		chosen, files := arguments(n)
		if len(chosen) > 0 {
			line("-a %s", fishQuoted(strings.Join(chosen, " ")))
		} else if files {
			line("-F")
		}
		for _, w := range wordsOf(n) {
			what := ""
			switch {
			case len(w.values) > 0:
				what = "-x -a " + fishQuoted(strings.Join(w.values, " ")) + " "
			case w.path != "":
				what = "-r -F "
			case w.takes:
				what = "-x "
			}
			line("-l %s %s-d %s", strings.TrimPrefix(w.name, "--"), what, fishQuoted(w.help))
		}
	})
	return b.String()
}

// fishCondition returns the condition under which n is the command that is being
// completed.
func fishCondition(n *kong.Node) string {
	if n.Parent == nil {
		return "__fish_use_subcommand"
	}
	var seen []string
	for _, name := range pathOf(n) {
		seen = append(seen, "__fish_seen_subcommand_from "+name)
	}
	for _, child := range children(n) {
		seen = append(seen, "not __fish_seen_subcommand_from "+child.Name)
	}
	return strings.Join(seen, "; and ")
}

// quoted returns a text in single quotes of bash and zsh.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// fishQuoted returns a text in single quotes of fish.
func fishQuoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}
