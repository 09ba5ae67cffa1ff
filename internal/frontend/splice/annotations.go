package splice

import (
	"bytes"
	"io"
	"slices"

	"github.com/ferula-io/ferula/promjson"
)

// annotationsMax limits the warnings of all lists together, and likewise the infos.
const annotationsMax = 1000

// annotationSet collects the warnings or the infos of several responses, deduplicated.
type annotationSet struct {
	list []string
	seen map[string]bool
}

func (s *annotationSet) add(more []string) {
	for _, text := range more {
		if len(s.list) == annotationsMax || s.seen[text] {
			continue
		}
		if s.seen == nil {
			s.seen = map[string]bool{}
		}
		s.seen[text] = true
		s.list = append(s.list, text)
	}
}

// uniteMembers merges the members of responses that Prometheus does not define. It returns a member if all lists
// with this member have the same value for it. It also returns isPartial if the values differ, with the value of a
// partial list.
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

// appendAnnotations appends the member key with a list of texts, as Prometheus encodes
// it: without texts, nothing.
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

// writeFull writes b to w if it has at least minBytes, and returns the emptied buffer.
func writeFull(w io.Writer, b []byte, minBytes int) ([]byte, error) {
	if len(b) < minBytes {
		return b, nil
	}
	_, err := w.Write(b)
	return b[:0], err
}
