package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestHelp_EveryFlagHasATextAndEveryTextAFlag(t *testing.T) {
	unused := helpTexts()
	for _, command := range parserOf(t, &commands{}).Model.Leaves(false) {
		for _, f := range command.Flags {
			if f.Help == "" || strings.Contains(f.Help, "${") || strings.TrimSpace(f.Help) != f.Help {
				t.Errorf("%s --%s: %q", command.Path(), f.Name, f.Help)
			}
			delete(unused, f.Name)
			delete(unused, command.Path()+" "+f.Name)
		}
	}
	if len(unused) > 0 {
		t.Errorf("of no flag: %q", slices.Sorted(maps.Keys(unused)))
	}
}
