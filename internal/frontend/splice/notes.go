package splice

import (
	"io"
	"slices"

	"github.com/ferula-io/ferula/promjson"
)

// notesMax bounds the warnings, and the infos, of all lists together.
const notesMax = 1000

func unite(all, more []string) []string {
	for _, text := range more {
		if len(all) < notesMax && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// appendNotes writes texts as Prometheus does: no key where there are none.
func appendNotes(dst []byte, key string, texts []string) []byte {
	for i, text := range texts {
		if i == 0 {
			dst = append(append(append(dst, `,"`...), key...), `":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = promjson.AppendString(dst, text)
	}
	if len(texts) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// writeFull writes b out once it is worth a call.
func writeFull(w io.Writer, b []byte, least int) ([]byte, error) {
	if len(b) < least {
		return b, nil
	}
	_, err := w.Write(b)
	return b[:0], err
}
