package remotesend

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestUnrepeated_EachQueueLogsItsLine(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	logger := slog.New(newUnrepeated(slog.NewTextHandler(&out, nil), time.Minute, func() time.Time { return now }))
	a, b := logger.With("remote_name", "a"), logger.WithGroup("g").With("remote_name", "b")
	take := func() string {
		defer out.Reset()
		return out.String()
	}
	for range 3 {
		a.Error("Failed to flush", "n", 1)
		b.Error("Failed to flush", "n", 2)
		a.Error("Other")
	}
	if got := take(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "remote_name=a n=1") || !strings.Contains(got, "g.remote_name=b g.n=2") || !strings.Contains(got, "msg=Other") {
		t.Errorf("%s", got)
	}
	now = now.Add(time.Minute)
	a.Error("Failed to flush", "n", 3)
	if got := take(); !strings.Contains(got, "n=3 suppressed=2") {
		t.Errorf("%s", got)
	}
	for i := range 2 * linesMax {
		logger.Info(fmt.Sprint("line ", i))
	}
	if got := strings.Count(take(), "\n"); got != 2*linesMax {
		t.Errorf("%d lines", got)
	}
	now = now.Add(time.Minute)
	logger.Info("new")
	logger.Info("new")
	if got := strings.Count(take(), "\n"); got != 1 {
		t.Errorf("%d lines after the old ones have expired", got)
	}
}
