package exposition

import (
	"errors"
	"fmt"
	"strings"
)

// Family returns a name without its labels. For a quoted name, {"http.requests",a="b"}, it
// returns "http.requests" with the quotes, as in HELP and TYPE lines.
func Family(name string) string {
	i := strings.IndexByte(name, '{')
	switch {
	case i > 0:
		return name[:i]
	case i == 0:
		n, err := quotedLen(name[1:])
		if err == nil {
			return name[1 : 1+n]
		}
	}
	return name
}

// Split returns the family and the labels of a name. The family of a quoted name is returned without
// its quotes, but still escaped. The labels are returned without their braces. Both alias name.
func Split(name string) (family, labels string) {
	family = Family(name)
	rest := name[min(len(name), len(family)):]
	if strings.HasPrefix(name, "{") {
		rest = name[1+len(family):]
		return family[1 : len(family)-1], strings.TrimLeft(strings.TrimSuffix(rest, "}"), ", ")
	}
	return family, strings.TrimSuffix(strings.TrimPrefix(rest, "{"), "}")
}

// AppendSuffixed appends a name with a suffix between its family and its labels.
func AppendSuffixed(dst []byte, name, suffix string) []byte {
	f := Family(name)
	if name[0] == '{' {
		dst = append(append(append(dst, '{'), f[:len(f)-1]...), suffix...)
		return append(append(dst, '"'), name[1+len(f):]...)
	}
	return append(append(append(dst, f...), suffix...), name[len(f):]...)
}

// Suffixed is AppendSuffixed as a string.
func Suffixed(name, suffix string) string { return string(AppendSuffixed(nil, name, suffix)) }

// WithTag adds a label to a name. tag is the label up to its value, such as `le="`. WithTag returns
// the parts of the new name before and after the value: `a_bucket{b="c",le="` and `"}` for the name
// `a_bucket{b="c"}`.
func WithTag(name, tag string) (prefix, end string) {
	base, separator := OpenLabels(name)
	return base + separator + tag, `"}`
}

// OpenLabels returns a name up to its closing brace, and the separator before a further
// label.
func OpenLabels(name string) (base, separator string) {
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
	errNotUTF8   = errors.New("a quoted name must be valid UTF-8 and not empty")
)

// Validate returns an error unless s is a metric name in one of these forms:
//
//   - foo
//   - foo{bar="baz"}
//   - foo{bar="baz",aaa="b"}
func Validate(s string) error {
	if s == "" {
		return errEmptyName
	}
	if strings.IndexByte(s, '\n') >= 0 {
		return errLineBreak
	}
	f := s
	if i := strings.IndexByte(s, '{'); i >= 0 {
		f = s[:i]
	}
	if err := ValidateIdentifier(f); err != nil {
		return err
	}
	labels := s[len(f):]
	if labels == "" {
		return nil
	}
	if len(labels) < 2 || labels[len(labels)-1] != '}' {
		return fmt.Errorf("missing closing curly brace at the end of %q", f)
	}
	return ValidateLabels(labels[1 : len(labels)-1])
}

// ValidateQuoted is Validate that also accepts quoted UTF-8 metric and label names:
// {"http.requests",bar="baz","über"="x"}.
func ValidateQuoted(s string) error {
	if !strings.HasPrefix(s, `{"`) {
		return Validate(s)
	}
	if strings.IndexByte(s, '\n') >= 0 {
		return errLineBreak
	}
	n, err := quotedLen(s[1:])
	if err != nil {
		return err
	}
	if !isText(s[1 : 1+n]) {
		return errNotUTF8
	}
	rest := s[1+n:]
	if !strings.HasSuffix(rest, "}") {
		return fmt.Errorf("missing closing curly brace at the end of %q", s)
	}
	rest = rest[:len(rest)-1]
	for rest != "" {
		if rest[0] != ',' {
			return fmt.Errorf("missing `,` before %q", rest)
		}
		rest = strings.TrimLeft(rest[1:], " ")
		name := rest
		if strings.HasPrefix(rest, `"`) {
			if n, err = quotedLen(rest); err != nil {
				return err
			}
			if !isText(rest[:n]) {
				return errNotUTF8
			}
			name = `_` + rest[n:]
			rest = rest[n:]
		} else if at := strings.IndexByte(rest, '='); at >= 0 {
			rest = rest[at:]
		}
		label, _, ok := strings.Cut(name, "=")
		if !ok {
			return fmt.Errorf("missing `=` after %q", name)
		}
		if err := ValidateIdentifier(label); err != nil {
			return err
		}
		if n, err = quotedLen(rest[1:]); err != nil {
			return fmt.Errorf("label %q: %w", label, err)
		}
		rest = rest[1+n:]
	}
	return nil
}

// isText reports whether a quoted name is not empty and is valid UTF-8.
func isText(quoted string) bool { return len(quoted) > 2 && strings.ToValidUTF8(quoted, "") == quoted }

// ValidateLabels returns an error unless s is a valid label set without braces.
func ValidateLabels(s string) error {
	for s != "" {
		label, rest, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("missing `=` after %q", s)
		}
		if err := ValidateIdentifier(label); err != nil {
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

// quotedLen returns the length of the quoted value at the start of s.
func quotedLen[T string | []byte](s T) (int, error) {
	if len(s) == 0 || s[0] != '"' {
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

// ValidateIdentifier returns an error unless s is a classic metric or label name.
func ValidateIdentifier(s string) error {
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
