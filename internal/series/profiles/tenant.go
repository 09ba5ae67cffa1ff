package profiles

import (
	"fmt"
	"strings"
)

// tenantBytesMax is as long as the peers allow it to be.
const tenantBytesMax = 150

// CheckTenant says whether a name may be a tenant's: letters, digits and !-_.*'()
// as in Mimir, Loki and Pyroscope, 150 at most, but neither . nor .. .
func CheckTenant(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the tenant has no name", ErrBadRequest)
	case len(name) > tenantBytesMax:
		return fmt.Errorf("%w: the tenant's name is longer than %d characters", ErrBadRequest, tenantBytesMax)
	case name == "." || name == "..":
		return fmt.Errorf("%w: the tenant's name must not be . or ..", ErrBadRequest)
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("!-_.*'()", c) < 0 {
			return fmt.Errorf("%w: the name of tenant %q may hold letters, digits and !-_.*'() only, and one tenant", ErrBadRequest, name)
		}
	}
	return nil
}

// TenantFolder is the name of a tenant's folder, on the disk and in a bucket. A dot in
// front would hide it, and is escaped with a character that no name has.
func TenantFolder(tenant string) string {
	if strings.HasPrefix(tenant, ".") {
		return "%2E" + tenant[1:]
	}
	return tenant
}

// TenantOfFolder is the tenant of a folder, escaped or not; false if it is none's.
func TenantOfFolder(folder string) (tenant string, ok bool) {
	if rest, escaped := strings.CutPrefix(folder, "%2E"); escaped {
		folder = "." + rest
	}
	return folder, CheckTenant(folder) == nil
}
