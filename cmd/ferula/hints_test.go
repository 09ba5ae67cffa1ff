package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/hint"
)

// hintsIn returns the hints within an options structure.
func hintsIn(v reflect.Value) (found []hint.Flags) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				found = append(found, hintsIn(v.Field(i))...)
			}
		}
	case reflect.Map:
		if flags, ok := v.Interface().(hint.Flags); ok {
			found = append(found, flags)
		}
	}
	return found
}

// Errors of limits name flags that the command has, and that exist under that name.
func TestHints_NameFlagsOfTheCommand(t *testing.T) {
	cli, err := parse(t, "serve")
	if err != nil {
		t.Fatal(err)
	}
	options := map[string]func() (any, error){
		"serve": func() (any, error) { return cli.Serve.options() },
		"query": func() (any, error) { c, err := parse(t, "query"); must(t, err); return c.Query.options() },
		"query-frontend": func() (any, error) {
			c, err := parse(t, "query-frontend")
			must(t, err)
			return c.QueryFrontend.options()
		},
		"sidecar": func() (any, error) { c, err := parse(t, "sidecar"); must(t, err); return c.Sidecar.options() },
	}
	for command, least := range map[string]int{"serve": 20, "query": 5, "query-frontend": 7, "sidecar": 3} {
		o, err := options[command]()
		must(t, err)
		flags, n := flagsOf(t, command), 0
		for _, hints := range hintsIn(reflect.ValueOf(o)) {
			for option := range hints {
				n++
				name := strings.TrimSuffix(strings.TrimPrefix(hints.Of(option), " (--"), ")")
				if flags[name] == nil {
					t.Errorf("%s has no flag --%s for %s", command, name, option)
				}
			}
		}
		if n < least {
			t.Errorf("%s has only %d hints", command, n)
		}
	}
	if text := (hint.Flags{}).Of("SeriesMax"); text != "" {
		t.Errorf("an option without a flag: %q", text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
