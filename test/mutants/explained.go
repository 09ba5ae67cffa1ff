package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// explanation is a mutant that no test can kill. The changed lines identify it, because line
// numbers change.
type explanation struct {
	file, kind, reason string
	before, after      string // the changed lines, without indentation
}

// readExplained reads the list of mutants that are equivalent to the code.
func readExplained(path string) ([]explanation, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []explanation
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] != '-' && line[0] != '+' {
			name, reason, _ := strings.Cut(line, ": ")
			file, kind, ok := strings.Cut(name, " ")
			if !ok || reason == "" {
				return nil, fmt.Errorf("%s:%d: want FILE KIND: REASON", path, i+1)
			}
			all = append(all, explanation{file: file, kind: kind, reason: reason})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%s:%d: a line before the first mutant", path, i+1)
		}
		last := &all[len(all)-1]
		side := &last.before
		if line[0] == '+' {
			side = &last.after
		}
		*side += strings.TrimSpace(line[1:]) + "\n"
	}
	return all, nil
}

// explained returns the reason why a mutant cannot be killed; "" if none is known.
func (r *runner) explained(m mutant) string {
	var before, after string
	for _, line := range strings.Split(r.diff(m), "\n") {
		switch {
		case strings.HasPrefix(line, "--- "), line == "":
		case line[0] == '-':
			before += strings.TrimSpace(line[1:]) + "\n"
		default:
			after += strings.TrimSpace(line[1:]) + "\n"
		}
	}
	i := slices.IndexFunc(r.explanations, func(e explanation) bool {
		return e.file == r.rel(m.file) && e.kind == m.kind && e.before == before && e.after == after
	})
	if i < 0 {
		return ""
	}
	return r.explanations[i].reason
}
