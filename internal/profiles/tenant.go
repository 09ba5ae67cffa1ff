package profiles

import (
	"fmt"
	"strings"
)

// tenantBytesMax is the limit of Mimir, Loki and Pyroscope.
const tenantBytesMax = 150

// CheckTenant checks a tenant name: letters, digits and !-_.*'() as in Mimir, Loki and
// Pyroscope, at most 150 bytes, neither . nor .. .
func CheckTenant(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the tenant name is empty", ErrBadRequest)
	case len(name) > tenantBytesMax:
		return fmt.Errorf("%w: the tenant name is longer than %d characters", ErrBadRequest, tenantBytesMax)
	case name == "." || name == "..":
		return fmt.Errorf("%w: the tenant name must not be . or ..", ErrBadRequest)
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("!-_.*'()", c) < 0 {
			return fmt.Errorf("%w: tenant name %q: only letters, digits and !-_.*'() are allowed; "+
				"several tenants are not supported", ErrBadRequest, name)
		}
	}
	return nil
}

// TenantDir returns the name of a tenant's directory on disk and in a bucket. A leading dot would hide the
// directory, so it is escaped with a character that no tenant name has.
func TenantDir(tenant string) string {
	if strings.HasPrefix(tenant, ".") {
		return "%2E" + tenant[1:]
	}
	return tenant
}

// TenantOfDir returns the tenant of a directory. ok is false if the directory belongs to no tenant.
func TenantOfDir(dir string) (tenant string, ok bool) {
	tenant = dir
	if rest, escaped := strings.CutPrefix(dir, "%2E"); escaped {
		tenant = "." + rest
	}
	return tenant, CheckTenant(tenant) == nil && TenantDir(tenant) == dir
}
