package sources

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

func TestClient_SeriesAreDecodedAsTheyArrive(t *testing.T) {
	f, c := newFake(t)
	ctx := context.Background()
	read := func() (got []string, warnings []string, err error) {
		warnings, err = c.Series(ctx, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "a", "1")}, 1500, 2500, func(lset labels.Labels) error {
			got = append(got, lset.String())
			return nil
		})
		return got, warnings, err
	}
	f.text = `{"newer":{"x":[1]},"status":"success","data":[{"b":"\u00fc","a":"1"},{}],"warnings":["cut short"],"infos":[]}`
	got, warnings, err := read()
	if err != nil || strings.Join(got, " ") != `{a="1", b="ü"} {}` || len(warnings) != 1 || f.query.Get("match[]") != `{a="1"}` || f.query.Get("start") != "1.500" || f.query.Get("end") != "2.500" {
		t.Errorf("%q %q %v; query %v", got, warnings, err, f.query)
	}
	long := `{"status":"success","data":[` + strings.Repeat(`{"a":"`+strings.Repeat("x", 1000)+`"},`, 1000) + `{}]}` // more than ResponseBytesMax
	if f.text = long; true {
		if got, _, err := read(); err != nil || len(got) != 1001 {
			t.Errorf("%d series, %v", len(got), err)
		}
	}
	for _, wrong := range []struct {
		status int
		text   string
		want   error
	}{
		{400, `{"status":"error","error":"bad matcher"}`, errRefused}, {503, "starting", errUnavailable}, {429, "", errUnavailable},
		{0, `{"status":"success","data":[{"a":"1"}`, errBadResponse}, {0, "<html>", errBadResponse}, {0, `{"status":"error","data":[]}`, errBadResponse}, {0, `{"data":[]}`, errBadResponse},
		{0, `{"status":"success","data":[{"a":1}]}`, errBadResponse}, {0, `{"status":"success","data":{}}`, errBadResponse}, {0, `[]`, errBadResponse},
		{0, `{"status":"success","data":[{"a":"` + strings.Repeat("x", elementBytesMax+1<<20) + `"}]}`, errBadResponse},
	} {
		f.status, f.text = wrong.status, wrong.text
		if _, _, err := read(); !errors.Is(err, wrong.want) {
			t.Errorf("%d %.60s: %v, want %v", wrong.status, wrong.text, err, wrong.want)
		}
	}
	wide := newClient(c.url, f.Client())
	f.status, f.text = 0, `{"status":"success","data":[{"seriesLabels":{"a":"`+strings.Repeat("x", 17<<20)+`"},"exemplars":[]}]}`
	if _, _, err := wide.Exemplars(ctx, "x", 0, 1); !errors.Is(err, errBadResponse) {
		t.Errorf("an exemplar's label beyond what a label set holds: %v", err)
	}
	stop := errors.New("enough")
	f.status, f.text = 0, long
	if _, err := c.Series(ctx, nil, 0, 1, func(labels.Labels) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}
