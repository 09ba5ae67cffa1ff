package splice

import (
	"bytes"
	"io"
	"slices"

	"github.com/ferula-io/ferula/promjson"
)

// notesMax bounds the warnings, and the infos, of all lists together.
const annotationsMax = 1000

// notes are warnings or infos of several responses, each once.
type annotationSet struct {
	list []string
	seen  map[string]bool
}

func (n *annotationSet) add(more []string) {
	for _, text := range more {
		if len(n.list) == annotationsMax || n.seen[text] {
			continue
		}
		if n.seen == nil {
			n.seen = map[string]bool{}
		}
		n.seen[text] = true
		n.list = append(n.list, text)
	}
}

// uniteMembers gives the members that are the same in all lists that have them,
// and isPartial as true where any list says so. Others are about one list only.
func uniteMembers(lists []List) []promjson.Member {
	var all []promjson.Member
	var differ []string
	for _, l := range lists {
		for _, m := range l.members {
			i := slices.IndexFunc(all, func(have promjson.Member) bool { return have.Name == m.Name })
			switch {
			case i < 0:
				all = append(all, m)
			case bytes.Equal(all[i].Value, m.Value):
			case m.Name == "isPartial":
				if isPartial(m) {
					all[i] = m
				}
			default:
				differ = append(differ, m.Name)
			}
		}
	}
	return slices.DeleteFunc(all, func(m promjson.Member) bool { return slices.Contains(differ, m.Name) })
}

// appendNotes writes texts as Prometheus does: no key where there are none.
func appendAnnotations(dst []byte, key string, texts []string) []byte {
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
