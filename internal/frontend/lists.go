package frontend

import (
	"bytes"
	"fmt"
	"github.com/ferula-io/ferula/promjson"
	"io"
	"slices"
)

// elementList is a response to a request for label names, label values or series: a list of
// JSON strings or of metric objects.
type elementList struct {
	partAnnotations
	elements []element
	infos    []string
	members  []promjson.Member // members of the response that Prometheus does not define
}

// element is one element of a elementList.
type element struct {
	raw     []byte // aliases the response
	decoded string // value of a string with escapes, else ""
}

// value returns the value of a string element.
func (e *element) value() []byte {
	if e.decoded != "" {
		return []byte(e.decoded)
	}
	return e.raw[1 : len(e.raw)-1]
}

// isPlain reports whether a JSON string has no escapes and only ASCII characters.
func isPlain(raw []byte) bool {
	for _, c := range raw {
		if c < ' ' || c == '\\' || c >= 0x80 {
			return false
		}
	}
	return true
}

// readList parses a response whose data is a list. For an error response it returns a
// promjson.APIError. The list aliases body.
func readList(body []byte) (elementList, error) {
	s := promjson.NewScanner(nil, promjson.Options{MaxUnknownBytes: len(body) + 1, MaxBufferBytes: len(body) + 1,
		MaxTextBytes: len(body) + 1})
	s.ResetBytes(body)
	for s.Next() {
		return elementList{}, fmt.Errorf("%w: data is not a list", promjson.ErrSyntax)
	}
	if s.Err() != nil {
		return elementList{}, s.Err()
	}
	e := s.Envelope()
	if e.Status != "success" {
		return elementList{}, &promjson.APIError{Status: e.Status, Type: e.ErrorType, Message: e.Error}
	}
	l := elementList{partAnnotations: annotationsOf(e), infos: e.Infos}
	left := unknownBytes
	for _, m := range e.Unknown {
		if m.InData {
			continue
		}
		if m.Name == "data" {
			var err error
			if l.elements, err = elementsOf(m.Value); err != nil {
				return elementList{}, err
			}
		} else if size := len(m.Name) + len(m.Value); size <= left {
			left -= size
			l.members = append(l.members, m)
		}
	}
	return l, nil
}

// elementsOf returns the elements of a valid JSON array, none for null.
func elementsOf(list []byte) ([]element, error) {
	if !bytes.HasPrefix(list, []byte("[")) {
		return nil, nil
	}
	var all []element
	for i := 1; i < len(list); {
		switch c := list[i]; c {
		case '"', '{':
			end := valueEnd(list, i)
			e := element{raw: list[i:end]}
			if c == '"' && !isPlain(e.raw) {
				labels, err := promjson.DecodeLabels(nil, slices.Concat([]byte(`{"":`), e.raw, []byte("}")))
				if err != nil {
					return nil, err
				}
				e.decoded = labels[0].Value
			}
			all, i = append(all, e), end
		case ' ', '\t', '\r', '\n', ',', ']':
			i++
		default:
			return nil, fmt.Errorf("%w: list elements are neither strings nor metrics", promjson.ErrSyntax)
		}
	}
	return all, nil
}

// valueEnd returns the end of the string or object that begins at i.
func valueEnd(b []byte, i int) int {
	depth, inside := 0, false
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			if inside = !inside; !inside && depth == 0 {
				return i + 1
			}
		case inside:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(b)
}

func compareElements(a, b *element) int {
	if a.raw[0] == '{' || b.raw[0] == '{' {
		if bytes.Equal(a.raw, b.raw) {
			return 0
		}
		return promjson.CompareMetrics(a.raw, b.raw)
	}
	return bytes.Compare(a.value(), b.value())
}

// sortElements sorts a list. Names and values arrive sorted; series may arrive unsorted.
func sortElements(list []element) {
	if !slices.IsSortedFunc(list, func(a, b element) int { return compareElements(&a, &b) }) {
		slices.SortFunc(list, func(a, b element) int { return compareElements(&a, &b) })
	}
}

// nextElement removes the smallest element from all lists, duplicates included, and
// returns it. It returns nil when all lists are empty.
func nextElement(lists [][]element) (least *element) {
	for _, l := range lists {
		if len(l) > 0 && (least == nil || compareElements(&l[0], least) < 0) {
			least = &l[0]
		}
	}
	if least == nil {
		return nil
	}
	for i := range lists {
		for len(lists[i]) > 0 && compareElements(&lists[i][0], least) == 0 {
			lists[i] = lists[i][1:]
		}
	}
	return least
}

// writeUnion writes the union of lists as one response: the elements of all lists,
// sorted and deduplicated, their warnings and infos, and the other members on which the
// lists agree.
func writeUnion(w io.Writer, lists []elementList) error {
	var warnings, infos annotationSet
	rest := make([][]element, 0, len(lists))
	for _, l := range lists {
		sortElements(l.elements)
		rest = append(rest, l.elements)
		warnings.add(l.Warnings)
		infos.add(l.infos)
	}
	b := []byte(`{"status":"success","data":[`)
	for n := 0; ; n++ {
		e := nextElement(rest)
		if e == nil {
			break
		}
		if n > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = writeFull(w, append(b, e.raw...), 64<<10); err != nil {
			return err
		}
	}
	b = append(b, ']')
	b = appendAnnotations(b, "warnings", warnings.list)
	b = appendAnnotations(b, "infos", infos.list)
	for _, m := range uniteMembers(lists) {
		b = promjson.AppendString(append(b, ','), m.Name)
		b = append(append(b, ':'), m.Value...)
	}
	_, err := writeFull(w, append(b, '}'), 0)
	return err
}

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
func uniteMembers(lists []elementList) []promjson.Member {
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
