package main

import (
	"go/token"
	"testing"
)

func TestSuppressed(t *testing.T) {
	for _, tt := range []struct {
		name, check, message, file string
		line                       string // the finding's
		above                      string
		want                       bool
	}{
		{"plain", "errorlint", "comparing", "a.go", "if err == errBad {", "", false},
		{"the same line", "errorlint", "comparing", "a.go", "if err == errBad { //lint:ignore errorlint set here", "", true},
		{"the line above", "errorlint", "comparing", "a.go", "if err == errBad {", "\t//lint:ignore errorlint set here", true},
		{"two checks", "SA1019", "deprecated", "a.go", "x", "//lint:ignore errorlint,SA1019 both", true},
		{"another check", "errcheck", "unchecked error", "a.go", "f()", "//lint:ignore errorlint set here", false},
		{"no reason", "errorlint", "comparing", "a.go", "if err == errBad {", "//lint:ignore errorlint", false},
		{"a test", "errcheck", "unchecked error", "a_test.go", "f()", "", true},
		{"a program for tests", "errcheck", "unchecked error", "/r/test/sim/a.go", "f()", "", true},
		{"nilness in a test", "nilness", "nil dereference", "a_test.go", "f()", "", false},
		{"the end of a reader", "errorlint", "comparing", "a.go", "if err == io.EOF {", "", true},
		{"gosec in a test", "gosec", "G204: subprocess", "a_test.go", "f()", "", true},
		{"gosec of another rule", "gosec", "G401: weak hash", "a.go", "f()", "", false},
		{"certificates not verified", "gosec", "G402: TLS", "a.go", "c.InsecureSkipVerify = o.Skip", "", true},
		{"a random token", "gosec", "G404: weak", "a.go", "rand.Uint64()", "", false},
		{"another deprecation", "SA1019", "labels.Other is deprecated", "a.go", "labels.Other", "", false},
	} {
		lines := []string{tt.above, tt.line}
		at := token.Position{Filename: tt.file, Line: 2}
		if got := suppressed(tt.check, tt.message, at, lines); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if got := suppressed(tt.check, tt.message, token.Position{Filename: tt.file, Line: 1}, nil); got && tt.above+tt.line != "f()" {
			t.Errorf("%s: suppressed without the lines", tt.name)
		}
	}
}
