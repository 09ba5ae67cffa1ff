package hint

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
)

func TestFlags_OfNamesTheFlagOfAnOption(t *testing.T) {
	f := Flags{"SeriesMax": "--query.max-series"}
	if f.Of("SeriesMax") != " (--query.max-series)" || f.Of("BytesMax") != "" || Flags(nil).Of("SeriesMax") != "" {
		t.Errorf("%q %q", f.Of("SeriesMax"), f.Of("BytesMax"))
	}
}

func TestWithoutPasswords_MasksURLsThatCannotBeParsed(t *testing.T) {
	for _, address := range []string{
		"http://eve:SEC%RET@h/", "http://eve:SEC RET@h/", "http://eve:SEC\"RET%x@h/", "http://eve:SEC@RET%x@h/", "http://eve:SECRET@h:x y/", "HTTP://:SEC%RET@h/",
		"http://eve:SEC\nRET@h/",
	} {
		_, err := url.Parse(address)
		if err == nil {
			t.Fatalf("%q is valid", address)
		}
		got := WithoutPasswords(fmt.Errorf("configuration a.yml: %w", err))
		if strings.Contains(got.Error(), "SEC") || strings.Contains(got.Error(), "RET") || !strings.Contains(got.Error(), ":xxxxx@h") || !errors.As(got, new(*url.Error)) {
			t.Errorf("%v", got)
		}
	}
	if err := WithoutPasswords(nil); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"EOF", `parse "http://h:80/x": mail to a@b`, "http://h/ and a:b@c", "a:b@c"} {
		before := fmt.Errorf("%s: %w", text, io.EOF)
		if got := WithoutPasswords(before); got.Error() != before.Error() {
			t.Errorf("%q is %q", before, got)
		}
	}
}
