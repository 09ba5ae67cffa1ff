// Command sbom writes the bill of materials of Go binaries as CycloneDX 1.6 JSON: the
// modules that `go version -m` shows, with versions and the checksums of go.sum.
//
//	sbom bin/ferula > ferula.cdx.json
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"` // in hex
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, to io.Writer) error {
	if len(args) != 1 {
		return errors.New("one argument is needed: a Go binary")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	out := json.NewEncoder(to)
	out.SetIndent("", "  ")
	return out.Encode(bomOf(info))
}

func bomOf(info *debug.BuildInfo) bom {
	main := componentOf("application", &info.Main)
	for _, setting := range info.Settings {
		main.Properties = append(main.Properties, property{"go:build:" + setting.Key, setting.Value})
	}
	b := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: metadata{main}, Components: []component{
		{Type: "library", Ref: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"), Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"), PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")},
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.Components = append(b.Components, componentOf("library", m))
	}
	return b
}

func componentOf(kind string, m *debug.Module) component {
	purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Type: kind, Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
	// "h1:" is the SHA-256 of the list of the module's files.
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		if raw, err := base64.StdEncoding.DecodeString(sum); err == nil {
			c.Hashes = []hash{{"SHA-256", hex.EncodeToString(raw)}}
		}
	}
	return c
}
