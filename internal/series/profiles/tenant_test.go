package profiles

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckTenant_AllowsPeersNamesThatAreSafeAsFolders(t *testing.T) {
	for name, folder := range map[string]string{
		"anonymous": "anonymous", "a!b*(c)'_-.d": "a!b*(c)'_-.d", ".ops": "%2Eops", "...": "%2E..", strings.Repeat("x", 150): strings.Repeat("x", 150),
	} {
		if err := CheckTenant(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if got := TenantFolder(name); got != folder {
			t.Errorf("%q: folder %q", name, got)
		}
		if got, ok := TenantOfFolder(folder); !ok || got != name {
			t.Errorf("folder %q: %q, %t", folder, got, ok)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "a|b", "a b", "a%2Eb", "ä", "a\x00", `a\b`, strings.Repeat("x", 151)} {
		if err := CheckTenant(name); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%q: %v", name, err)
		}
		if _, ok := TenantOfFolder(name); ok {
			t.Errorf("folder %q was accepted as a tenant's", name)
		}
	}
	if name, ok := TenantOfFolder(".ops"); !ok || name != ".ops" {
		t.Errorf("an unescaped folder of an older version: %q, %t", name, ok)
	}
	if _, ok := TenantOfFolder("%2E"); ok {
		t.Error("a folder named . was accepted as a tenant's")
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
