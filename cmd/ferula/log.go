package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/common/promslog"
)

// logger returns the logger of the process, and its level, which a reload may change.
func (f logFlags) logger() (*slog.Logger, *promslog.Level, error) { return f.loggerTo(os.Stderr) }

// quietLogger is logger for a command whose output informational messages, such as of a WAL replay, would disturb.
func (f logFlags) quietLogger() (*slog.Logger, error) {
	if f.Level == "info" {
		f.Level = "warn"
	}
	logger, _, err := f.logger()
	return logger, err
}

// loggerTo returns a logger that writes to w, and its level. It makes it the logger of libraries that write to the
// loggers of package slog or log.
func (f logFlags) loggerTo(w io.Writer) (*slog.Logger, *promslog.Level, error) {
	level, format := promslog.NewLevel(), promslog.NewFormat()
	if err := level.Set(string(f.Level)); err != nil {
		return nil, nil, fmt.Errorf("--log.level: %w", err)
	}
	if err := format.Set(f.Format); err != nil {
		return nil, nil, fmt.Errorf("--log.format: %w", err)
	}
	logger := promslog.New(&promslog.Config{Level: level, Format: format, Writer: w})
	slog.SetDefault(logger)
	log.SetFlags(0)
	// after SetDefault, which sets another output: all lines would be of one level
	log.SetOutput(standardLog{logger.Handler()})
	return logger, level, nil
}

// standardLog logs the lines that are written to the standard logger of package log.
type standardLog struct{ handler slog.Handler }

// Write implements io.Writer. Package metrics begins lines with their level. Other libraries write only what is wrong.
func (l standardLog) Write(line []byte) (int, error) {
	level, text := slog.LevelWarn, strings.TrimSuffix(string(line), "\n")
	if rest, ok := strings.CutPrefix(text, "ERROR: "); ok {
		level, text = slog.LevelError, rest
	}
	text = strings.TrimPrefix(text, "WARN: ")
	ctx := context.Background()
	if !l.handler.Enabled(ctx, level) {
		return len(line), nil
	}
	var caller [1]uintptr
	runtime.Callers(4, caller[:]) // it is behind runtime.Callers, Write, Logger.output and log.Printf
	return len(line), l.handler.Handle(ctx, slog.NewRecord(time.Now(), level, text, caller[0]))
}
