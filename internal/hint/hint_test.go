package hint

import "testing"

func TestFlags_OfNamesTheFlagOfAnOption(t *testing.T) {
	f := Flags{"SeriesMax": "--query.max-series"}
	if f.Of("SeriesMax") != " (--query.max-series)" || f.Of("BytesMax") != "" || Flags(nil).Of("SeriesMax") != "" {
		t.Errorf("%q %q", f.Of("SeriesMax"), f.Of("BytesMax"))
	}
}
