package limit

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestQuery_CheckRange(t *testing.T) {
	const day = 24 * 3600 * 1000
	for _, c := range []struct {
		name             string
		limits           Query
		start, end, step int64
		want             string
	}{
		{"no limits", Query{}, math.MinInt64, math.MaxInt64, 1, ""},
		{"exactly as long as allowed", Query{LengthMax: 24 * time.Hour}, 0, day, 1000, ""},
		{"a millisecond longer", Query{LengthMax: 24 * time.Hour}, 0, day + 1, 1000, "limit exceeded: query range: 24h0m0.001s, at most 24h0m0s"},
		{"as long as can be", Query{LengthMax: time.Hour}, math.MinInt64, math.MaxInt64, 1, "limit exceeded: query range: 2562047h47m16.854s, at most 1h0m0s"},
		{"backwards", Query{LengthMax: 1, PointsMax: 1}, 10, 0, 1, ""},
		{"without a step", Query{PointsMax: 1}, 0, 10, 0, ""},
		{"exactly as many points as allowed", Query{PointsMax: 11}, 0, 100, 10, ""},
		{"the rest of a step is no point", Query{PointsMax: 11}, 0, 109, 10, ""},
		{"one more", Query{PointsMax: 11}, 0, 110, 10, "limit exceeded: points per series (range divided by step): 12, at most 11"},
		{"as many as can be", Query{PointsMax: 11}, math.MinInt64, math.MaxInt64, 2, "limit exceeded: points per series (range divided by step): 9223372036854775807, at most 11"},
	} {
		err := c.limits.CheckRange(c.start, c.end, c.step)
		if c.want == "" {
			checkIs(t, err, nil)
			continue
		}
		checkIs(t, err, ErrLimit)
		if err != nil {
			check(t, c.name, err.Error(), c.want)
		}
	}
}

func TestQuery_CheckText(t *testing.T) {
	checkIs(t, Query{}.CheckText(strings.Repeat("x", 1000)), nil)
	checkIs(t, Query{QueryBytesMax: 3}.CheckText("abc"), nil)
	checkIs(t, Query{QueryBytesMax: 1}.CheckText("a"), nil)
	checkIs(t, Query{QueryBytesMax: 1}.CheckText("ab"), ErrLimit)
	err := Query{QueryBytesMax: 3}.CheckText("abcd")
	var limitErr *Error
	check(t, "kind", errors.As(err, &limitErr) && errors.Is(err, ErrLimit), true)
	check(t, "text", err.Error(), "limit exceeded: query length: 4 bytes, at most 3 bytes")
}

func TestTenants_OfHeaders(t *testing.T) {
	own := Tenants{Headers: []string{"X-Team"}, Default: "default-team"}
	for _, c := range []struct {
		name    string
		tenants Tenants
		header  http.Header
		want    string
		err     error
	}{
		{"none", Tenants{}, nil, "anonymous", nil},
		{"none, another default", Tenants{Default: "default-tenant"}, http.Header{}, "default-tenant", nil},
		{"of Mimir and Cortex", Tenants{}, http.Header{"X-Scope-Orgid": {"a"}}, "a", nil},
		{"of Thanos", Tenants{}, http.Header{"Thanos-Tenant": {"b"}}, "b", nil},
		{"of both that disagree", Tenants{}, http.Header{"X-Scope-Orgid": {"a"}, "Thanos-Tenant": {"b"}}, "", ErrTenant},
		{"an empty one is none", Tenants{}, http.Header{"X-Scope-Orgid": {""}, "Thanos-Tenant": {"b"}}, "b", nil},
		{"of one's own", Tenants{Headers: []string{"x-team"}}, http.Header{"X-Team": {"c"}, "X-Scope-Orgid": {"a"}}, "c", nil},
		{"one's own, and a default", own, nil, "default-team", nil},
		{"one's own, but another one is sent", own, http.Header{"X-Scope-Orgid": {"a"}}, "default-team", nil},
		{"one's own, and Thanos'", own, http.Header{"X-Team": {"a"}, "Thanos-Tenant": {"b"}}, "", ErrTenant},
		{"one's own is that of Thanos", Tenants{Headers: []string{"thanos-tenant"}}, http.Header{"Thanos-Tenant": {"a"}, "X-Scope-Orgid": {"1"}}, "a", nil},
		{"of both that agree", Tenants{}, http.Header{"X-Scope-Orgid": {"a"}, "Thanos-Tenant": {"a"}}, "a", nil},
		{"twice the same", Tenants{}, http.Header{"X-Scope-Orgid": {"a", "a"}}, "a", nil},
		{"twice", Tenants{}, http.Header{"X-Scope-Orgid": {"a", "b"}}, "", ErrTenant},
		{"several joined", Tenants{}, http.Header{"X-Scope-Orgid": {"a|b"}}, "a|b", nil},
		{"a path", Tenants{}, http.Header{"X-Scope-Orgid": {"../b"}}, "", ErrTenant},
		{"as long as allowed", Tenants{}, http.Header{"X-Scope-Orgid": {strings.Repeat("x", 150)}}, strings.Repeat("x", 150), nil},
		{"longer", Tenants{}, http.Header{"X-Scope-Orgid": {strings.Repeat("x", 151)}}, "", ErrTenant},
	} {
		got, err := c.tenants.Of(c.header)
		check(t, c.name, got, c.want)
		checkIs(t, err, c.err)
	}
	for _, bad := range []string{"", ".", "..", "a b", "a/b", `a\b`, `a"b`, "a\nb", "a\x00", "ä", "\x7f"} {
		checkIs(t, CheckTenant(bad), ErrTenant)
	}
	checkIs(t, Tenants{}.Validate(), nil)
	checkIs(t, Tenants{Default: "a/b"}.Validate(), ErrTenant)
	check(t, "a header without a name", Tenants{Headers: []string{""}}.Validate() != nil, true)
}

func FuzzTenants(f *testing.F) {
	f.Add("a", "b")
	f.Fuzz(func(t *testing.T, first, second string) {
		name, err := Tenants{}.Of(http.Header{"X-Scope-Orgid": {first}, "Thanos-Tenant": {second}})
		if err == nil && first != "" && second != "" && first != second {
			t.Fatalf("%q and %q: %q", first, second, name)
		}
		if (err == nil) != (name != "") || err == nil && CheckTenant(name) != nil || err != nil && !errors.Is(err, ErrTenant) {
			t.Fatalf("%q, %q: %q, %v", first, second, name, err)
		}
	})
}
