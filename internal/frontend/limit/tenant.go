package limit

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// tenantBytesMax is how long a tenant's name may be.
const tenantBytesMax = 150

// ThanosHeader names the tenant between Thanos' components. It is always one of
// the tenant headers, as a Thanos downstream reads it whatever else is configured.
const ThanosHeader = "THANOS-TENANT"

// Tenants finds the tenant of a request. Zero values take the defaults named.
type Tenants struct {
	// Headers may each name the tenant; ThanosHeader is added to them. None:
	// X-Scope-OrgID and ThanosHeader.
	Headers []string
	Default string // where none is there; "": anonymous
}

// headers are all that may name a tenant.
func (t Tenants) headers() []string {
	if len(t.Headers) == 0 {
		return []string{"X-Scope-OrgID", ThanosHeader}
	}
	if slices.ContainsFunc(t.Headers, func(h string) bool { return strings.EqualFold(h, ThanosHeader) }) {
		return t.Headers
	}
	return append(slices.Clone(t.Headers), ThanosHeader)
}

// Validate reports every fault at once.
func (t Tenants) Validate() error {
	var errs []error
	for _, header := range t.Headers {
		if header == "" {
			errs = append(errs, errors.New("limit: a tenant header without a name"))
		}
	}
	if t.Default != "" {
		errs = append(errs, CheckTenant(t.Default))
	}
	return errors.Join(errs...)
}

// Of gives the tenant that the headers of a request name, or ErrTenant. Headers
// that name different tenants are refused, and so is one header with different
// values: the downstream might believe another one than we do.
func (t Tenants) Of(h http.Header) (string, error) {
	tenant, from := "", ""
	for _, header := range t.headers() {
		found := h.Values(header)
		if len(found) == 0 || len(found) == 1 && found[0] == "" {
			continue
		}
		for _, other := range found[1:] {
			if other != found[0] {
				return "", fmt.Errorf("%w: %s is there %d times", ErrTenant, header, len(found))
			}
		}
		if err := CheckTenant(found[0]); err != nil {
			return "", fmt.Errorf("%w, in %s", err, header)
		}
		if from != "" && found[0] != tenant {
			return "", fmt.Errorf("%w: %s names %q and %s names %q", ErrTenant, from, tenant, header, found[0])
		}
		tenant, from = found[0], header
	}
	switch {
	case from != "":
		return tenant, nil
	case t.Default == "":
		return "anonymous", nil
	default:
		return t.Default, nil
	}
}

// CheckTenant refuses names that could be mistaken for something else in a path, a
// key or a log: other than 1 to 150 visible ASCII characters, with a slash, a
// backslash or a quotation mark, "." and "..".
func CheckTenant(name string) error {
	if name == "" || len(name) > tenantBytesMax {
		return fmt.Errorf("%w: a name of %d bytes, 1 to %d are allowed", ErrTenant, len(name), tenantBytesMax)
	}
	if name == "." || name == ".." {
		return fmt.Errorf("%w: %q", ErrTenant, name)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '/' || c == '\\' || c == '"' {
			return fmt.Errorf("%w: %q has a character that is not allowed", ErrTenant, name)
		}
	}
	return nil
}
