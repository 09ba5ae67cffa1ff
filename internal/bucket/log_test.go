package bucket

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestKitLogger_MessagesOfProvidersHaveTheirTextAndFields(t *testing.T) {
	for _, c := range []struct {
		keyvals []any
		want    string
	}{
		{[]any{"level", "warn", "n", 1, "msg", "is slow"}, `level=WARN msg="is slow" n=1`},
		{[]any{"msg", "is gone", "err", "EOF", "of", "a"}, `level=WARN msg="is gone" err=EOF of=a`},
		{[]any{"msg", "retries", "level", "info"}, `level=DEBUG msg=retries`},
		{[]any{"level", "debug", "n", 2}, `level=DEBUG msg="object storage" n=2`},
		{[]any{"level", "error", "without a value"}, `level=WARN msg="object storage"`},
		{nil, `level=WARN msg="object storage"`},
	} {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))
		if err := (kitLogger{logger}).Log(c.keyvals...); err != nil || !strings.HasSuffix(strings.TrimSpace(b.String()), " "+c.want) {
			t.Errorf("%v: %s, %v", c.keyvals, &b, err)
		}
	}
}
