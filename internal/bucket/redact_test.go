package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/client_golang/prometheus"
)

// A shared access signature is part of the URL of each request, and errors of connections have the URL.
func TestOpen_ErrorsOfAzureHaveNoSignature(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer server.Close()
	config := func(create bool) []byte {
		return fmt.Appendf(nil, `
type: AZURE
config:
  storage_account: a
  container: c
  storage_create_container: %v
  storage_connection_string: "BlobEndpoint=%s/a;SharedAccessSignature=sv=2020&sig=geheim%%2Fnis"
  max_retries: 1
  pipeline_config: {max_tries: 1, retry_delay: 1ms, max_retry_delay: 1ms}
`, create, server.URL)
	}
	var logs bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx := context.Background()
	var all []error
	for _, create := range []bool{true, false} {
		b, err := Open(config(create), "test", logger, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Get(ctx, "o")
		all = append(all, err)
		_, err = b.GetRange(ctx, "o", 0, 1)
		all = append(all, err)
		_, err = b.Exists(ctx, "o")
		all = append(all, err)
		_, err = b.Attributes(ctx, "o")
		all = append(all, err, b.Iter(ctx, "", func(string) error { return nil }), b.Delete(ctx, "o"), b.Upload(ctx, "o", strings.NewReader("text")))
	}
	for i, err := range all {
		var cause *url.Error
		if err == nil || strings.Contains(err.Error(), "geheim") || !errors.As(err, &cause) {
			t.Errorf("error %d: %v", i, err)
		}
	}
	if strings.Contains(logs.String(), "geheim") {
		t.Error(logs.String())
	}
}

func TestRedactedBody_KeepsItsEndAndCauses(t *testing.T) {
	body := redactedBody{io.NopCloser(strings.NewReader("text"))}
	if text, err := io.ReadAll(body); string(text) != "text" || err != nil {
		t.Error(string(text), err)
	}
	cause := &url.Error{Op: "Get", URL: "http://a/b?sv=1&sig=geheim&x=1", Err: io.ErrUnexpectedEOF}
	body = redactedBody{io.NopCloser(iotest.ErrReader(cause))}
	_, err := io.ReadAll(body)
	if err == nil || err.Error() != `Get "http://a/b?sv=1&sig=<secret>&x=1": unexpected EOF` || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
