package splice

import (
	"slices"

	"github.com/ferula-io/ferula/promjson"
)

// notesMax bounds the warnings, and the infos, of all parts together.
const notesMax = 1000

// notes unite what the parts said beside their data.
type notes struct {
	warnings, infos []string
}

func (n *notes) add(e *promjson.Envelope) {
	n.warnings = unite(n.warnings, e.Warnings)
	n.infos = unite(n.infos, e.Infos)
}

func unite(all, more []string) []string {
	for _, text := range more {
		if len(all) < notesMax && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// append writes them as Prometheus does: no key where there are none.
func (n *notes) append(o *output) {
	list := func(key string, texts []string) {
		if len(texts) == 0 {
			return
		}
		o.text(key)
		for i, text := range texts {
			if i > 0 {
				o.text(",")
			}
			o.b = promjson.AppendString(o.b, text)
		}
		o.text("]")
	}
	list(`,"warnings":[`, n.warnings)
	list(`,"infos":[`, n.infos)
}

// Warnings are what the parts warned of. They are complete once WriteTo has
// returned.
func (s *Splice) Warnings() []string { return s.notes.warnings }
