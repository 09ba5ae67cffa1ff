package telemetry

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestWithoutPasswords_RedactsURLsOfAttributesAndEvents(t *testing.T) {
	memory := tracetest.NewInMemoryExporter()
	provider := tracesdk.NewTracerProvider(tracesdk.WithSyncer(withoutPasswords{memory}))
	given := []attribute.KeyValue{
		attribute.String("remote_url", "http://eve:SECRET@host/write"), attribute.String("user", "eve@host"), attribute.Int("n", 7),
		attribute.String("query", `up{a="http://x:y@z"} == 1`),
	}
	_, span := provider.Tracer("").Start(t.Context(), "send")
	span.SetAttributes(given...)
	span.AddEvent("retry", trace.WithAttributes(attribute.String("to", "https://eve:SECRET@host/"), attribute.String("why", "it failed")), trace.WithTimestamp(time.Unix(1, 0)))
	span.RecordError(errors.New("status 500"))
	span.End()
	spans := memory.GetSpans()
	if len(spans) != 1 {
		t.Fatal(spans)
	}
	var text strings.Builder
	for _, list := range append([][]attribute.KeyValue{spans[0].Attributes}, spans[0].Events[0].Attributes, spans[0].Events[1].Attributes) {
		for _, a := range list {
			text.WriteString(string(a.Key) + "=" + a.Value.String() + "\n")
		}
	}
	for _, want := range []string{"remote_url=http://eve:xxxxx@host/write\n", "user=eve@host\n", "n=7\n", "query=up{a=\"http://x:y@z\"} == 1\n", "to=https://eve:xxxxx@host/\n", "why=it failed\n", "status 500\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, &text)
		}
	}
	if given[0].Value.AsString() != "http://eve:SECRET@host/write" {
		t.Error("the attributes of the caller were changed")
	}
}
