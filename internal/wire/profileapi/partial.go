package profileapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

// Headers, and trailers where the protocol has them, of a response that lacks what
// could not be read. Names are in net/http's spelling.
const (
	partialHeader = "Ferula-Partial-Response" // "true"
	warningHeader = "Ferula-Warning"          // one value for each reason
)

const (
	warningsMax     = 10  // texts of one response; the last one may say how many more there are
	warningBytesMax = 400 // of one text
)

// outcome is what a request's functions leave for whoever writes the response.
type outcome struct {
	closers  []func() // called once the response is written
	warnings []string
	more     int // warnings beyond warningsMax
}

type outcomeKey struct{}

func withOutcome(ctx context.Context) (context.Context, *outcome) {
	o := &outcome{}
	return context.WithValue(ctx, outcomeKey{}, o), o
}

func outcomeOf(ctx context.Context) *outcome { return ctx.Value(outcomeKey{}).(*outcome) }

func (o *outcome) close() {
	for _, f := range o.closers {
		f()
	}
}

// closing gives the memory of responses back once they have been written.
func closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, o := withOutcome(r.Context())
		defer o.close()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// afterwards has f called when the response is out.
func afterwards(ctx context.Context, f func()) {
	o := outcomeOf(ctx)
	o.closers = append(o.closers, f)
}

// warn notes what the response lacks.
func warn(ctx context.Context, warnings []error) {
	o := outcomeOf(ctx)
	for _, err := range warnings {
		text := plain(err.Error())
		switch {
		case o.has(text):
		case len(o.warnings) < warningsMax-1:
			o.warnings = append(o.warnings, text)
		default:
			o.more++
		}
	}
}

func (o *outcome) has(text string) bool {
	for _, known := range o.warnings {
		if known == text {
			return true
		}
	}
	return false
}

// texts are the warnings, bounded in number and length.
func (o *outcome) texts() []string {
	if o.more == 0 {
		return o.warnings
	}
	return append(o.warnings[:len(o.warnings):len(o.warnings)], fmt.Sprintf("and %d more", o.more))
}

// headers are those of a partial response, none of a whole one.
func (o *outcome) headers() http.Header {
	if len(o.warnings) == 0 {
		return nil
	}
	return http.Header{partialHeader: {"true"}, warningHeader: o.texts()}
}

// appendWarnings appends a member with the warnings to a JSON object that is still
// open; nothing if there are none.
func (o *outcome) appendWarnings(b []byte) []byte {
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

// plain makes a text fit for a header: printable ASCII, and not too long.
func plain(text string) string {
	words := strings.FieldsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
	text = strings.Join(words, " ")
	if len(text) > warningBytesMax {
		text = text[:warningBytesMax-3] + "..."
	}
	return text
}
