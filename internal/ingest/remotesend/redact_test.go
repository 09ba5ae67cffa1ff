package remotesend

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestRedacting_LogsNoPasswordsOfURLs(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(redacting{slog.NewTextHandler(&out, nil)})
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
