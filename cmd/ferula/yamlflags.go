package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/envsubst"
)

// masked is what is shown of a secret.
const masked = "<secret>"

// secret is a flag whose value may hold keys or passwords, such as inline YAML. It is
// never shown: not by status/flags, not by /debug/pprof/cmdline, not in a log.
type secret string

// String shows whether there is a value.
func (s secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// secretURL is a flag with a URL that may hold a password.
type secretURL string

// String is the URL without its password.
func (s secretURL) String() string {
	u, err := url.Parse(string(s))
	switch {
	case err == nil:
		return u.Redacted()
	case strings.Contains(string(s), "@"):
		return masked
	}
	return string(s)
}

// yamlOf takes YAML from a flag or a file, $(NAME) replaced by the environment's
// value. A name that is not set is an error, in each such flag.
func pathOrContent(flag string, inline secret, file string) (string, error) {
	text := string(inline)
	if file != "" {
		flag += "-file"
		read, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("--%s: %w", flag, err)
		}
		text = string(read)
	}
	text, err := envsubst.Expand(text)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	return text, nil
}

// commandLine is a command line with its secrets masked.
func commandLine(k *kong.Context, args []string) []string {
	shown := map[string]func(string) string{}
	for _, flag := range k.Flags() {
		switch flag.Target.Interface().(type) {
		case secret:
			shown["--"+flag.Name] = func(value string) string { return secret(value).String() }
		case secretURL:
			shown["--"+flag.Name] = func(value string) string { return secretURL(value).String() }
		}
	}
	out := make([]string, 0, len(args))
	var next func(string) string // of the value that follows its flag
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
