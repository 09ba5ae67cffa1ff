package httpapi

import "testing"

func TestPrettyLevels_LongerQueriesHaveFewerLevels(t *testing.T) {
	if got := prettyLevels(prettyBytes); got != prettyNestingMax {
		t.Errorf("%d levels of %d bytes", got, prettyBytes)
	}
	last := prettyNestingMax
	for n := 1; n <= 10<<20; n = n*2 + 1 {
		got := prettyLevels(n)
		if got > last || got < 2 || (n > prettyBytes && got*got*n > prettyNestingMax*prettyNestingMax*prettyBytes) {
			t.Errorf("%d bytes: %d levels after %d", n, got, last)
		}
		last = got
	}
	if got := prettyLevels(4 * prettyBytes); got != prettyNestingMax/2 {
		t.Errorf("%d levels of four times the bytes", got)
	}
}
