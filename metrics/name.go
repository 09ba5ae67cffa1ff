package metrics

import (
	"errors"
	"fmt"
	"strings"
)

// named is what all metrics have in common: the whole text they were registered
// under, name{label="value"}.
type named struct{ name string }

func (n *named) fullName() string { return n.name }

// family is a name without its labels.
func family(name string) string {
	if i := strings.IndexByte(name, '{'); i >= 0 {
		return name[:i]
	}
	return name
}

// suffixed puts a suffix between a name and its labels.
func suffixed(name, suffix string) string {
	f := family(name)
	return f + suffix + name[len(f):]
}

// withTag opens the labels of a name for one more: what is between prefix and end
// is its value.
func withTag(name, tag string) (prefix, end string) {
	base, separator := openLabels(name)
	return base + separator + tag, `"}`
}

// openLabels returns a name up to its closing brace, and what must stand before one
// label more.
func openLabels(name string) (base, separator string) {
	if !strings.HasSuffix(name, "}") {
		return name, "{"
	}
	base = name[:len(name)-1]
	if strings.HasSuffix(base, "{") {
		return base, ""
	}
	return base, ","
}

var (
	errEmptyName = errors.New("metric cannot be empty")
	errLineBreak = errors.New("metric cannot contain line breaks")
)

// ValidateMetric tells what is wrong with the name of a metric, which is one of
//
//   - foo
//   - foo{bar="baz"}
//   - foo{bar="baz",aaa="b"}
func ValidateMetric(s string) error {
	if s == "" {
		return errEmptyName
	}
	if strings.IndexByte(s, '\n') >= 0 {
		return errLineBreak
	}
	f := family(s)
	if err := validateIdentifier(f); err != nil {
		return err
	}
	labels := s[len(f):]
	if labels == "" {
		return nil
	}
	if len(labels) < 2 || labels[len(labels)-1] != '}' {
		return fmt.Errorf("missing closing curly brace at the end of %q", f)
	}
	return validateLabels(labels[1 : len(labels)-1])
}

func validateLabels(s string) error {
	for s != "" {
		label, rest, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("missing `=` after %q", s)
		}
		if err := validateIdentifier(label); err != nil {
			return err
		}
		n, err := quotedLen(rest)
		if err != nil {
			return fmt.Errorf("label %q: %w", label, err)
		}
		rest = rest[n:]
		if rest == "" {
			return nil
		}
		if rest[0] != ',' {
			return fmt.Errorf("missing `,` after the value of %q; tail=%q", label, rest)
		}
		s = strings.TrimLeft(rest[1:], " ")
		if s == "" {
			return fmt.Errorf("missing label after the value of %q", label)
		}
	}
	return nil
}

// quotedLen is the length of the quoted value that s begins with.
func quotedLen(s string) (int, error) {
	if s == "" || s[0] != '"' {
		return 0, fmt.Errorf("missing starting `\"` of the value; tail=%q", s)
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return i + 1, nil
		case '\\':
			i++
		}
	}
	return 0, fmt.Errorf("missing trailing `\"` of the value; tail=%q", s)
}

func validateIdentifier(s string) error {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || c == ':' || c == '.'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return fmt.Errorf("invalid identifier %q", s)
		}
	}
	if s == "" {
		return fmt.Errorf("invalid identifier %q", s)
	}
	return nil
}
