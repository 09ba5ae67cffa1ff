// Package redact removes secrets from what ferula shows: the passwords of URLs and the signatures of Azure in errors,
// log lines, spans and pages. Nothing else decides here what is a secret: flags with secrets are in cmd/ferula,
// sections of prometheus.yml in internal/httpapi.
package redact

import (
	"context"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
)

var (
	// passwordInURL finds the user and password of a URL in an error. A URL that is quoted in the error may have quotes,
	// too. It also finds them in a URL that cannot be parsed: many passwords need to be escaped in URLs.
	passwordInURL = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@"]*):(?:[^"\n]|\\")*@`)

	// signature matches the secret of a shared access signature of Azure. The secret is a parameter of the URL of each
	// request, and the texts of net/http's errors have the URL.
	signature = regexp.MustCompile(`(?i)([?&]sig=)[^&\s"]+`)
)

// URL replaces the password of a URL, and the whole of a text that is no URL and may have a password.
func URL(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err == nil:
		return u.Redacted()
	case strings.Contains(raw, "@"):
		return "<secret>"
	}
	return raw
}

// Value replaces the password if the text is nothing but a URL with one.
func Value(text string) string {
	if strings.Contains(text, "://") && strings.Contains(text, "@") && !strings.ContainsAny(text, " \"") {
		return URL(text)
	}
	return text
}

// Error returns err with xxxxx instead of the passwords of URLs in its text.
func Error(err error) error { return replaced(err, passwordInURL, "${1}:xxxxx@") }

// Signature returns err with <secret> instead of the signatures of URLs in its text.
func Signature(err error) error { return replaced(err, signature, "${1}<secret>") }

func replaced(err error, secret *regexp.Regexp, by string) error {
	if err == nil || !secret.MatchString(err.Error()) {
		return err
	}
	return &redacted{err, secret.ReplaceAllString(err.Error(), by)}
}

// redacted is an error with another text.
type redacted struct {
	err  error
	text string
}

// Error implements error.
func (r *redacted) Error() string { return r.text }

// Unwrap returns the error with its own text.
func (r *redacted) Unwrap() error { return r.err }

// Handler is a log handler that replaces the passwords of attributes that are URLs: libraries log the URLs of their
// configuration.
type Handler struct{ slog.Handler }

// WithAttrs implements slog.Handler.
func (h Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	without := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		without[i] = attr(a)
	}
	return Handler{h.Handler.WithAttrs(without)}
}

// WithGroup implements slog.Handler.
func (h Handler) WithGroup(name string) slog.Handler {
	return Handler{h.Handler.WithGroup(name)}
}

// Handle implements slog.Handler.
func (h Handler) Handle(ctx context.Context, record slog.Record) error {
	without := slog.NewRecord(record.Time, record.Level, record.Message, record.PC)
	record.Attrs(func(a slog.Attr) bool {
		without.AddAttrs(attr(a))
		return true
	})
	return h.Handler.Handle(ctx, without)
}

func attr(a slog.Attr) slog.Attr {
	text := a.Value.String()
	if shown := Value(text); shown != text {
		return slog.String(a.Key, shown)
	}
	return a
}
