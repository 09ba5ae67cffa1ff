package backtest_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// With intervals of years, 64 of them exceed 2^63 ns.
func TestRun_IntervalsOfYears(t *testing.T) {
	for _, interval := range []string{"1y", "5y", "20y"} {
		w := newWorld(t, 1_000_000)
		content := "groups:\n- name: g\n  interval: " + interval + "\n  rules:\n  - alert: A\n" +
			"    expr: 'vector(time()) < 1e9 or vector(time()) > 2e9'\n    labels: {rule: r}\n"
		o := w.options(time.Hour)
		o.Start, o.End = time.Unix(0, 0).UTC(), time.Unix(4_200_000_000, 0).UTC()
		o.Resends = false
		notified := func(line string) bool { return strings.Contains(line, "notified") } // resends are only counted
		got := slices.DeleteFunc(transcribed(run(t, content, o))["r"], notified)
		want := slices.DeleteFunc(w.wanted(t, content, o)["r"], notified)
		if !slices.Equal(got, want) || len(got) < 2 {
			t.Errorf("interval %s: %s\nwant %s", interval, got, want)
		}
	}
}
