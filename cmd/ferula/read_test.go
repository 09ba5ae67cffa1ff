package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/export"
)

func TestTimeFlag_AbsoluteAndRelative(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	for text, want := range map[timeFlag]time.Time{
		"now": now, "-8h": now.Add(-8 * time.Hour), "now-1d": now.Add(-24 * time.Hour), "-1h30m": now.Add(-90 * time.Minute),
		"2026-01-01T00:00:00Z": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), "2026-01-01T01:00:00.5+01:00": time.Date(2026, 1, 1, 0, 0, 0, 5e8, time.UTC),
		"1700000000": time.Unix(1700000000, 0), "1700000000.123": time.UnixMilli(1700000000123), "0": time.Unix(0, 0), "-60": time.Unix(-60, 0),
	} {
		if got, err := text.at(now); err != nil || got != want.UnixMilli() {
			t.Errorf("%s: %d, want %d, %v", text, got, want.UnixMilli(), err)
		}
	}
	for _, text := range []timeFlag{"yesterday", "-", "8h", "now+1h", "now5", "1e300", "NaN", "2026-01-01"} {
		if got, err := text.at(now); err == nil {
			t.Errorf("%s is %d", text, got)
		}
	}
}

func TestReadCommand_TimesMayBeginWithADash(t *testing.T) {
	cli, err := parse(t, "read", "--url=http://x:1", "--match", `{job="a,b"}`, "--match", "up", "--start", "-8h", "--end", "-1h", "-o", "a.parquet", "--header=A: b, c", "--header=D: e")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	o, err := cli.Read.options(now)
	if err != nil {
		t.Fatal(err)
	}
	e := o.Export
	if e.StartMS != now.Add(-8*time.Hour).UnixMilli() || e.EndMS != now.Add(-time.Hour).UnixMilli() || len(e.Matchers) != 2 || e.Format != export.Parquet || e.Window != 2*time.Hour || e.Tries != 5 {
		t.Errorf("%+v", e)
	}
	if o.Header.Get("A") != "b, c" || o.Header.Get("D") != "e" {
		t.Errorf("headers %v", o.Header)
	}
}

func TestReadCommand_StateHasNoSecrets(t *testing.T) {
	cli, err := parse(t, "read", "--url=http://eve:apple@x:1", "--match=up", "-o", "a.csv", "--header=Authorization: Bearer pear")
	if err != nil {
		t.Fatal(err)
	}
	o, err := cli.Read.options(time.Now())
	if err != nil || strings.Contains(o.Export.Request, "apple") || strings.Contains(o.Export.Request, "pear") || !strings.Contains(o.Export.Request, "eve") {
		t.Errorf("%s, %v", o.Export.Request, err)
	}
}

func TestReadCommand_InvalidFlagsAreRefused(t *testing.T) {
	for _, args := range []string{
		"read -o x.csv", "read --match=up", "read -o x.csv --match=up --start", "read -o x.csv --match=up --start tomorrow", "read -o x.csv --match=up --format=xml",
		"read -o x.csv --match=up --url=http://x --tsdb.path=y", "read -o x.csv --match=up --retries=-1",
	} {
		if _, err := parse(t, strings.Fields(args)...); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
	for _, args := range []string{"--match={ --match=up", "--match=up --header=x"} {
		cli, err := parse(t, strings.Fields("read -o x.csv "+args)...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cli.Read.options(time.Now()); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}
