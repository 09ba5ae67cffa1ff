package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/redact"
)

// masked replaces the value of a secret in output.
const masked = "<secret>"

// secret is a flag whose value may contain keys or passwords, such as inline YAML. No
// output shows it: neither status/flags nor /debug/pprof/cmdline nor the log.
type secret string

// String returns masked, or "" without a value.
func (s secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// secretURL is a flag with a URL that may contain a password.
type secretURL string

// String returns the URL with its password redacted.
func (s secretURL) String() string { return redact.URL(string(s)) }

// pathOrContent returns the YAML of a flag or of the file of its -file twin. It replaces
// $(NAME) by the value of the environment variable. A variable that is not set is an
// error.
func pathOrContent(flag string, inline secret, file string) (string, error) {
	content := string(inline)
	if file != "" {
		flag += "-file"
		read, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("--%s: %w", flag, err)
		}
		content = string(read)
	}
	content, err := hint.Expand(content)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	return content, nil
}

// masks returns, for each flag with a secret, a function that masks the value, by the flag's name. Flags of a
// replaced program that have no effect here are among them.
func masks(k *kong.Context) map[string]func(string) string {
	yaml := func(value string) string { return secret(value).String() }
	address := func(value string) string { return secretURL(value).String() }
	found := map[string]func(string) string{}
	for _, flag := range k.Flags() {
		switch flag.Target.Interface().(type) {
		case secret:
			found[flag.Name] = yaml
		case secretURL:
			found[flag.Name] = address
		}
	}
	if selected := k.Selected(); selected != nil {
		for _, p := range peerFlagsOf(selected.Name) {
			switch p.kind {
			case "yaml":
				found[p.name] = yaml
			case "url":
				found[p.name] = address
			}
		}
	}
	return found
}

// commandLine returns a command line with masked secrets.
func commandLine(k *kong.Context, args []string) []string {
	shown := map[string]func(string) string{}
	for name, mask := range masks(k) {
		shown["--"+name] = mask
	}
	out := make([]string, 0, len(args))
	// formats the next argument, the value of a secret flag; nil: the next argument is not secret
	var next func(string) string
	for _, arg := range args {
		name, value, inline := strings.Cut(arg, "=")
		show := shown[name]
		switch {
		case next != nil:
			arg, next = next(arg), nil
		case show != nil && inline:
			arg = name + "=" + show(value)
		default:
			next = show
		}
		out = append(out, arg)
	}
	return out
}

// contents reads the YAML of flags, and collects the errors of all flags.
type contents struct{ errs []error }

// of returns the YAML of a flag or of the file of its -file twin; "" after an error.
func (c *contents) of(flag string, inline secret, file string) string {
	got, err := pathOrContent(flag, inline, file)
	c.add(err)
	return got
}

// bucket returns the configuration of a command that is nothing without its bucket.
func (c *contents) bucket(inline secret, file string) string {
	text, err := pathOrContent("objstore.config", inline, file)
	if err == nil && strings.TrimSpace(text) == "" {
		err = errors.New("--objstore.config or --objstore.config-file is required, and must not be empty")
	}
	c.add(err)
	return text
}

// add adds an error unless it is nil.
func (c *contents) add(err error) {
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

func (c *contents) err() error { return errors.Join(c.errs...) }
