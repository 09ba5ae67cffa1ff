package limit

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/hint"
)

// tenantBytesMax is the maximum length of a tenant's name.
const tenantBytesMax = 150

// ThanosHeader names the tenant between Thanos' components. It is always one of the tenant headers,
// because a Thanos downstream reads it even if Tenants.Headers has other headers only.
const ThanosHeader = "THANOS-TENANT"

// Tenants determines the tenant of a request. Zero values take the defaults.
type Tenants struct {
	// Headers are the names of headers that contain the tenant. ThanosHeader is added to
	// them. Empty: X-Scope-OrgID and ThanosHeader.
	Headers []string
	Default string // tenant of requests without such a header; "": anonymous
}

// headers returns the names of all tenant headers.
func (t Tenants) headers() []string {
	if len(t.Headers) == 0 {
		return []string{"X-Scope-OrgID", ThanosHeader}
	}
	if slices.ContainsFunc(t.Headers, func(h string) bool { return strings.EqualFold(h, ThanosHeader) }) {
		return t.Headers
	}
	return append(slices.Clone(t.Headers), ThanosHeader)
}

// Validate returns all faults, joined.
func (t Tenants) Validate() error {
	var errs []error
	for _, header := range t.Headers {
		if header == "" {
			errs = append(errs, hint.Invalid("query-frontend.org-id-header", errors.New("the name of the header is empty")))
		}
	}
	if t.Default != "" {
		errs = append(errs, hint.Invalid("query-frontend.default-tenant-id", CheckTenant(t.Default)))
	}
	return errors.Join(errs...)
}

// Of returns the tenant of a request, or ErrTenant. It rejects headers that name different tenants,
// and one header with different values: the downstream might use another of these tenants than the
// frontend.
func (t Tenants) Of(h http.Header) (string, error) {
	tenant, from := "", ""
	for _, header := range t.headers() {
		found := h.Values(header)
		if len(found) == 0 || len(found) == 1 && found[0] == "" {
			continue
		}
		for _, other := range found[1:] {
			if other != found[0] {
				return "", fmt.Errorf("%w: %s has %d values", ErrTenant, header, len(found))
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

// CheckTenant returns ErrTenant for a name that is unsafe in a path, a key or a log line.
// A valid name has 1 to 150 visible ASCII characters, without slash, backslash and
// quotation mark, and is neither "." nor "..".
func CheckTenant(name string) error {
	if name == "" || len(name) > tenantBytesMax {
		return fmt.Errorf("%w: name has %d bytes, must have 1 to %d", ErrTenant, len(name), tenantBytesMax)
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
