// Package peerflags has one table per command with every flag of the program that the
// command replaces: whether it is honoured, inert or refused, and why.
//
// Package main makes from a table the flags that are inert or refused, their warnings and
// errors, and docs/ops/flags.md. The honoured flags are fields of a command's structure in
// package main. Tests compare the tables with those fields and with the peers' own --help.
//
// To honour a flag that is inert or refused:
//
//  1. Add a field with its name to the structure of the command in cmd/ferula, with
//     negatable:"" if it is a switch, and pass the value to the role.
//  2. Replace the row by honoured(name, note). A flag that is not in the peer's --help
//     keeps .unlisted().
//  3. Run `make generate`, which writes docs/ops/flags.md.
//
// To honour a feature of --enable-feature of serve, add its function to features in
// cmd/ferula/features.go and replace its row in the same way.
package peerflags

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/alecthomas/units"
	"github.com/prometheus/common/model"
)

// Status is what ferula does with a flag.
type Status string

// The statuses.
const (
	Honoured Status = "honoured"
	Inert    Status = "inert"   // ignored with a warning: it tunes a part that does not exist here
	Refused  Status = "refused" // an error: ferula lacks a function on which the operator would rely
)

// Kind is the kind of value of a flag that is inert or refused.
type Kind int

// The kinds. A Switch has no value and may be negated as --no-NAME. No output shows YAML, nor the password of a URL.
const (
	Text Kind = iota
	Switch
	Number
	Duration
	Size
	YAML
	URL
)

// Row is one flag of a peer, or one feature of its --enable-feature.
type Row struct {
	Name   string
	Status Status
	Kind   Kind
	Note   string // shown in the documentation; the reason in warnings and errors
	Hidden bool   // the peer does not list it in --help
	Former bool   // only earlier versions of the peer accept it; it is Hidden, too

	harmless string // of a refused flag: the value that is accepted nevertheless, as it is the peer's default
}

// Table has the flags of one command.
type Table struct {
	Command  string // of ferula
	Peer     string // such as "thanos query"
	Version  string
	Rows     []Row
	Features []Row
}

// Tables returns the tables of all commands that replace a peer.
func Tables() []Table {
	return []Table{Serve(), Query(), QueryFrontend(), Sidecar(), Store()}
}

func honoured(name, note string) Row { return Row{Name: name, Status: Honoured, Note: note} }

func inert(name string, kind Kind, why string) Row {
	return Row{Name: name, Status: Inert, Kind: kind, Note: why}
}

func refused(name string, kind Kind, why string) Row {
	return Row{Name: name, Status: Refused, Kind: kind, Note: why}
}

// but returns a refused row that nevertheless accepts the given value.
func (r Row) but(harmless string) Row {
	r.harmless = harmless
	return r
}

// unlisted returns a row that the peer's --help does not list.
func (r Row) unlisted() Row {
	r.Hidden = true
	return r
}

// former returns a row of a flag that only earlier versions of the peer accept.
func (r Row) former() Row {
	r.Former = true
	return r.unlisted()
}

// rows joins rows and sorts them by name.
func rows(groups ...[]Row) []Row {
	all := slices.Concat(groups...)
	slices.SortFunc(all, func(a, b Row) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// Find returns the row of a flag.
func (t Table) Find(name string) (Row, bool) { return find(t.Rows, name) }

// FindFeature returns the row of a feature.
func (t Table) FindFeature(name string) (Row, bool) { return find(t.Features, name) }

func find(rows []Row, name string) (Row, bool) {
	for _, row := range rows {
		if row.Name == name {
			return row, true
		}
	}
	return Row{}, false
}

// Flags returns a pointer to a structure with one field, tagged for kong, for each flag
// that is inert or refused: []bool for a switch, []string for other kinds.
func (t Table) Flags() any {
	var fields []reflect.StructField
	for i, row := range t.Rows {
		if row.Status == Honoured {
			continue
		}
		field := reflect.StructField{Name: "Flag" + strconv.Itoa(i), Type: reflect.TypeFor[[]string]()}
		tag := fmt.Sprintf(`name:%q hidden:"" sep:"none" help:%q`, row.Name, string(row.Status)+": "+row.Note)
		if row.Kind == Switch {
			field.Type = reflect.TypeFor[bool]()
			tag += ` negatable:""`
		}
		field.Tag = reflect.StructTag(tag)
		fields = append(fields, field)
	}
	return reflect.New(reflect.StructOf(fields)).Interface()
}

// Check checks the value of a given flag. It returns an error if the flag is refused or if
// the value is not of its kind.
func (r Row) Check(value string) error {
	switch r.Status {
	case Refused:
		if value == "" || value == r.harmless || (r.Kind == Switch && r.harmless == "" && value == "false") {
			return nil
		}
		return fmt.Errorf("--%s is not supported: %s", r.Name, r.Note)
	case Inert:
		if err := r.Kind.check(value); err != nil {
			return fmt.Errorf("--%s=%s: %w", r.Name, value, err)
		}
	}
	return nil
}

func (k Kind) check(value string) (err error) {
	switch k {
	case Number:
		if _, err = strconv.ParseFloat(value, 64); err != nil {
			return fmt.Errorf("not a number")
		}
	case Duration:
		_, err = model.ParseDuration(value)
	case Size:
		_, err = units.ParseBase2Bytes(value)
	}
	return err
}
