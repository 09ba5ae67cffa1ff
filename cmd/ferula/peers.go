package main

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/alecthomas/units"
	"github.com/prometheus/common/model"
)

// peerFlag is a flag of the program that a command replaces, and has no effect here. Those that have one are fields of
// the command's structure.
type peerFlag struct {
	name    string
	why     string // the reason in warnings, errors and docs/ops/flags.md
	refused bool   // an error: ferula lacks a function on which the operator would rely. Otherwise it is a warning.

	// what its values are: number, duration, size, yaml, url, "" for any text, or switch, which has no value and may be
	// negated as --no-NAME. No output shows yaml, nor the password of a url.
	kind     string
	harmless string // a value that is accepted although the flag is refused, as it is the peer's default
}

// status returns the word for it in docs/ops/flags.md.
func (p peerFlag) status() string {
	if p.refused {
		return "refused"
	}
	return "inert"
}

// peerFlagsOf returns the flags of a command's peer that have no effect, or the features of features.
func peerFlagsOf(command string) (all []peerFlag) {
	for _, row := range peerRows {
		if !slices.Contains(strings.Fields(row.commands), command) {
			continue
		}
		for text := range strings.FieldsSeq(row.flags) {
			text, harmless, _ := strings.Cut(text, "=")
			name, kind, _ := strings.Cut(text, ":")
			all = append(all, peerFlag{name, row.why, row.status == refused, kind, harmless})
		}
	}
	return all
}

// findPeerFlag returns the flag of a name; its zero value if there is none.
func findPeerFlag(command, name string) peerFlag {
	all := peerFlagsOf(command)
	if i := slices.IndexFunc(all, func(p peerFlag) bool { return p.name == name }); i >= 0 {
		return all[i]
	}
	return peerFlag{}
}

// addPeerFlags adds the flags of the peers to the commands of a parser.
func addPeerFlags(parser *kong.Kong) {
	mappers := kong.NewRegistry().RegisterDefaults()
	for _, command := range parser.Model.Children {
		for _, p := range peerFlagsOf(command.Name) {
			target, tag := reflect.ValueOf(new([]string)).Elem(), &kong.Tag{Sep: -1}
			if p.kind == "switch" {
				target, tag.Negatable = reflect.ValueOf(new(bool)).Elem(), "_"
			}
			flag := &kong.Flag{Hidden: true, Value: &kong.Value{Name: p.name, Help: p.status() + ": " + p.why, Tag: tag,
				Target: target, Mapper: mappers.ForValue(target)}}
			flag.Value.Flag = flag
			command.Flags = append(command.Flags, flag)
		}
	}
}

// check returns an error if the flag is refused with the value, or if the value is not of its kind.
func (p peerFlag) check(value string) error {
	if p.refused {
		if value == "" || value == p.harmless || p.kind == "switch" && p.harmless == "" && value == "false" {
			return nil
		}
		return fmt.Errorf("--%s is not supported: %s", p.name, p.why)
	}
	var err error
	switch p.kind {
	case "number":
		if _, err = strconv.ParseFloat(value, 64); err != nil {
			err = errors.New("not a number")
		}
	case "duration":
		_, err = model.ParseDuration(value)
	case "size":
		_, err = units.ParseBase2Bytes(value)
	}
	if err != nil {
		return fmt.Errorf("--%s=%s: %w", p.name, value, err)
	}
	return nil
}

// ignoredFlags are the given flags that have no effect here.
type ignoredFlags []peerFlag

// warn logs each ignored flag once.
func (i ignoredFlags) warn(logger *slog.Logger) {
	for _, flag := range i {
		logger.Warn("Ignoring a flag that ferula does not need", "flag", "--"+flag.name, "reason", flag.why)
	}
}

// checkPeerFlags checks the given flags of the peer. It returns those that have no effect, and an error that names each
// refused flag.
func checkPeerFlags(k *kong.Context) (ignored ignoredFlags, err error) {
	if k.Selected() == nil {
		return nil, nil
	}
	seen := map[string]bool{}
	for _, part := range k.Path {
		if part.Flag == nil || seen[part.Flag.Name] {
			continue
		}
		seen[part.Flag.Name] = true
		p := findPeerFlag(k.Selected().Name, part.Flag.Name)
		if p.name == "" {
			continue
		}
		if !p.refused {
			ignored = append(ignored, p)
		}
		for _, value := range valuesOf(part.Flag) {
			if wrong := p.check(value); wrong != nil {
				err = errors.Join(err, wrong)
				break
			}
		}
	}
	return ignored, err
}

// valuesOf returns the values of a flag that addPeerFlags has made: one of a switch, all given ones of another flag.
func valuesOf(flag *kong.Flag) []string {
	if values, ok := flag.Target.Interface().([]string); ok {
		return values
	}
	return []string{fmt.Sprint(flag.Target.Interface())}
}
