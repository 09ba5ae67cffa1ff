package redact

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

func TestHandler_LogsNoPasswordsOfURLs(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(Handler{slog.NewTextHandler(&out, nil)})
	logger.With("url", "http://eve:SECRET@host/write").WithGroup("g").Info("A line", "to", "https://eve:SECRET@host/", "user", "eve@host", "n", 7)
	got := out.String()
	if strings.Contains(got, "SECRET") {
		t.Errorf("%s", got)
	}
	for _, want := range []string{"@host/write", "g.to=https://eve:", "g.user=eve@host", "g.n=7", `msg="A line"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

func TestError_MasksURLsThatCannotBeParsed(t *testing.T) {
	for _, address := range []string{
		"http://eve:SEC%RET@h/", "http://eve:SEC RET@h/", "http://eve:SEC\"RET%x@h/", "http://eve:SEC@RET%x@h/", "http://eve:SECRET@h:x y/", "HTTP://:SEC%RET@h/",
		"http://eve:SEC\nRET@h/",
	} {
		_, err := url.Parse(address)
		if err == nil {
			t.Fatalf("%q is valid", address)
		}
		got := Error(fmt.Errorf("configuration a.yml: %w", err))
		if strings.Contains(got.Error(), "SEC") || strings.Contains(got.Error(), "RET") || !strings.Contains(got.Error(), ":xxxxx@h") || !errors.As(got, new(*url.Error)) {
			t.Errorf("%v", got)
		}
	}
	if err := Error(nil); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"EOF", `parse "http://h:80/x": mail to a@b`, "http://h/ and a:b@c", "a:b@c"} {
		before := fmt.Errorf("%s: %w", text, io.EOF)
		if got := Error(before); got.Error() != before.Error() {
			t.Errorf("%q is %q", before, got)
		}
	}
}

func TestURL_HidesPasswords(t *testing.T) {
	for raw, want := range map[string]string{
		"http://eve:apple@h/": "http://eve:xxxxx@h/", "http://h/": "http://h/", "://eve:apple@h": "<secret>", "://h": "://h",
	} {
		if got := URL(raw); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
}
