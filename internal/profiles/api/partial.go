package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

// Headers of a partial response, also sent as trailers where the protocol has them.
// The names have net/http's canonical form.
const (
	partialHeader = "Ferula-Partial-Response" // "true"
	warningHeader = "Ferula-Warning"          // one value for each reason
)

const (
	warningsMax     = 10  // of one response; the last may be the number of omitted warnings
	warningBytesMax = 400 // of one warning
)

// requestContext collects the warnings of a response, and the functions that are called once
// the response is written.
type requestContext struct {
	to       http.ResponseWriter // of a response that may be written in pieces; nil: in one piece
	closers  []func()            // called after the response is written
	warnings []string
	more     int // number of warnings beyond warningsMax
}

type requestContextKey struct{}

func withRequestContext(ctx context.Context) (context.Context, *requestContext) {
	o := &requestContext{}
	return context.WithValue(ctx, requestContextKey{}, o), o
}

func requestContextOf(ctx context.Context) *requestContext {
	return ctx.Value(requestContextKey{}).(*requestContext)
}

func (o *requestContext) close() {
	for _, f := range o.closers {
		f()
	}
}

// withCleanup runs the functions of onWritten once the response is written. A response of one message that is neither
// framed nor compressed may be written in pieces.
func withCleanup(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, o := withRequestContext(r.Context())
		defer o.close()
		h, contentType := r.Header, r.Header.Get("Content-Type")
		if (strings.HasPrefix(contentType, "application/proto") || strings.HasPrefix(contentType, "application/json")) &&
			!strings.Contains(h.Get("Accept-Encoding")+h.Get("Content-Encoding"), "gzip") {
			o.to = w
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func onWritten(ctx context.Context, f func()) {
	o := requestContextOf(ctx)
	o.closers = append(o.closers, f)
}

// warn adds a warning to the response for each error.
func warn(ctx context.Context, warnings []error) {
	o := requestContextOf(ctx)
	for _, err := range warnings {
		text := headerValue(err.Error())
		switch {
		case slices.Contains(o.warnings, text):
		case len(o.warnings) < warningsMax-1:
			o.warnings = append(o.warnings, text)
		default:
			o.more++
		}
	}
}

// texts returns the warnings, bounded in number and length.
func (o *requestContext) texts() []string {
	if o.more == 0 {
		return o.warnings
	}
	return append(o.warnings[:len(o.warnings):len(o.warnings)], fmt.Sprintf("and %d more", o.more))
}

// headers returns the headers of a partial response, nil for a complete one.
func (o *requestContext) headers() http.Header {
	if len(o.warnings) == 0 {
		return nil
	}
	return http.Header{partialHeader: {"true"}, warningHeader: o.texts()}
}

// appendWarnings appends the field "warnings" to a JSON object that is still open. It appends
// nothing if there are no warnings.
func (o *requestContext) appendWarnings(b []byte) []byte {
	for i, text := range o.texts() {
		if i == 0 {
			b = append(b, `,"warnings":[`...)
		} else {
			b = append(b, ',')
		}
		b = promjson.AppendString(b, text)
	}
	if len(o.warnings) > 0 {
		b = append(b, ']')
	}
	return b
}

// headerValue makes a text valid as a header: printable ASCII of limited length.
func headerValue(text string) string {
	words := strings.FieldsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
	text = strings.Join(words, " ")
	if len(text) > warningBytesMax {
		text = text[:warningBytesMax-3] + "..."
	}
	return text
}
