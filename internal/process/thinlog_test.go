package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestThinLog_EachQueueLogsItsLine(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	logger := slog.New(ThinLog(slog.NewTextHandler(&out, nil), 1, time.Minute, func() time.Time { return now }))
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
	for i := range 2 * messagesMax {
		logger.Info(fmt.Sprint("line ", i))
	}
	if got := strings.Count(take(), "\n"); got != 2*messagesMax {
		t.Errorf("%d lines", got)
	}
	now = now.Add(time.Minute)
	logger.Info("new")
	logger.Info("new")
	if got := strings.Count(take(), "\n"); got != 1 {
		t.Errorf("%d lines after the old ones have expired", got)
	}
}

// A handler must not append to the attributes of a record that its caller still has.
func TestThinLog_RecordOfTheCallerStaysAsItIs(t *testing.T) {
	now := time.Unix(0, 0)
	h := ThinLog(slog.NewTextHandler(io.Discard, nil), 1, time.Minute, func() time.Time { return now })
	r := slog.NewRecord(now, slog.LevelWarn, "bad series", 0)
	for i := range 8 { // the last three are in a slice with room for a fourth
		r.AddAttrs(slog.Int("n", i))
	}
	for range 2 {
		if err := h.Handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Minute)
	if err := h.Handle(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.AddAttrs(slog.Int("last", 1)) // notes an attribute that another owner of the slice has appended
	var keys []string
	r.Attrs(func(a slog.Attr) bool { keys = append(keys, a.Key); return true })
	if len(keys) != 9 || keys[8] != "last" {
		t.Errorf("%q", keys)
	}
}

func TestThinLog_OneSuppressedMessageIsCounted(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	logger := slog.New(ThinLog(slog.NewTextHandler(&out, nil), 1, time.Minute, func() time.Time { return now })).WithGroup("g").With("a", 1)
	logger.Warn("bad series")
	logger.Warn("bad series")
	now = now.Add(time.Minute - 1)
	logger.Warn("bad series")
	if got := out.String(); strings.Count(got, "\n") != 1 {
		t.Error(got)
	}
	out.Reset()
	now = now.Add(1)
	logger.Warn("bad series", "b", 2)
	if got := out.String(); !strings.Contains(got, "suppressed=2") || !strings.Contains(got, "g.a=1") || !strings.Contains(got, "g.b=2") {
		t.Error(got)
	}
	out.Reset()
	now = now.Add(time.Minute)
	logger.Warn("bad series")
	logger.Warn("bad series")
	now = now.Add(time.Minute)
	logger.Warn("bad series")
	if got := out.String(); strings.Count(got, "suppressed=1") != 1 || strings.Count(got, "\n") != 2 {
		t.Error(got)
	}
}

func TestThinLog_SuppressesRepeatedMessages(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	logger := slog.New(ThinLog(slog.NewTextHandler(&out, nil), 2, time.Minute, func() time.Time { return now }))
	take := func() string {
		defer out.Reset()
		return out.String()
	}
	for range 10 {
		logger.Warn("bad series")
	}
	logger.WithGroup("g").Warn("another")
	if got := take(); strings.Count(got, "bad series") != 2 || strings.Count(got, "another") != 1 || strings.Contains(got, "suppressed") {
		t.Error(got)
	}
	now = now.Add(time.Minute)
	logger.Warn("bad series")
	logger.Warn("bad series")
	logger.Warn("bad series")
	if got := take(); strings.Count(got, "bad series") != 2 || strings.Count(got, "suppressed=8") != 1 {
		t.Error(got)
	}
}

// failingHandler fails to write.
type failingHandler struct{ slog.Handler }

func (failingHandler) Handle(context.Context, slog.Record) error { return io.ErrShortWrite }

func TestThinLog_ReturnsTheErrorOfTheNext(t *testing.T) {
	h := ThinLog(failingHandler{}, 2, time.Minute, time.Now)
	if err := h.Handle(context.Background(), slog.Record{}); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}
