package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime/debug"
	"testing"
)

func TestRun_ReadsTheModulesOfABinary(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{self}, &out); err != nil {
		t.Fatal(err)
	}
	var got bom
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != "CycloneDX" || len(got.Components) == 0 || got.Components[0].Name != "std" || len(got.Metadata.Component.Properties) == 0 {
		t.Errorf("%s", out.Bytes())
	}
	for _, args := range [][]string{nil, {"main.go"}, {"missing"}} {
		if err := run(args, &out); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestBOM_HasVersionsChecksumsAndReplacements(t *testing.T) {
	b := bomOf(&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "example/main", Version: "v1.0.0+dirty"}, Deps: []*debug.Module{
		{Path: "example/a", Version: "v1.2.3", Sum: "h1:AQI="},
		{Path: "example/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example/c", Version: "v2.0.0"}},
	}})
	a, c := b.Components[1], b.Components[2]
	if a.PURL != "pkg:golang/example/a@v1.2.3" || len(a.Hashes) != 1 || a.Hashes[0].Content != "0102" || c.Name != "example/c" || c.Version != "v2.0.0" || c.Hashes != nil {
		t.Errorf("%+v", b)
	}
	if got := b.Metadata.Component.PURL; got != "pkg:golang/example/main@v1.0.0%2Bdirty" {
		t.Error(got)
	}
}
