package profiles

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckTenant_AllowsPeersNamesThatAreSafeAsFolders(t *testing.T) {
	for name, dir := range map[string]string{
		"anonymous": "anonymous", "a!b*(c)'_-.d": "a!b*(c)'_-.d", ".ops": "%2Eops", "...": "%2E..", strings.Repeat("x", 150): strings.Repeat("x", 150),
	} {
		if err := CheckTenant(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if got := TenantDir(name); got != dir {
			t.Errorf("%q: directory %q", name, got)
		}
		if got, ok := TenantOfDir(dir); !ok || got != name {
			t.Errorf("directory %q: %q, %t", dir, got, ok)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "a|b", "a b", "a%2Eb", "ä", "a\x00", `a\b`, strings.Repeat("x", 151)} {
		if err := CheckTenant(name); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%q: %v", name, err)
		}
		if _, ok := TenantOfDir(name); ok {
			t.Errorf("directory %q was accepted as a tenant's", name)
		}
	}
	if _, ok := TenantOfDir(".ops"); ok {
		t.Error("a hidden directory was accepted as a tenant's")
	}
	if _, ok := TenantOfDir("%2E"); ok {
		t.Error("a directory named . was accepted as a tenant's")
	}
}

func TestCheckTenant_EveryByte(t *testing.T) {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!-_.*'()"
	for c := range 256 {
		name := "a" + string([]byte{byte(c)})
		if err := CheckTenant(name); (err == nil) != strings.Contains(allowed, name[1:]) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckTenant(strings.Repeat("a", tenantBytesMax)); err != nil {
		t.Error(err)
	}
	if err := CheckTenant(strings.Repeat("a", tenantBytesMax+1)); err == nil {
		t.Error("a name that is a byte too long")
	}
}
