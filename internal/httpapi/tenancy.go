package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
)

// tenantHeader is the default header of Thanos. It is read if Tenancy.Header is absent from a request.
const tenantHeader = "THANOS-TENANT"

// Tenancy determines the tenant of a request to ferula query, as Thanos does. The zero value reads
// the header THANOS-TENANT, has no default tenant and enforces nothing.
type Tenancy struct {
	Header  string // name of the header with the tenant; "": THANOS-TENANT
	Default string // tenant of a request without the header
	// CertificateField is the field of the client certificate that has the tenant: organization,
	// organizationalUnit or commonName. If it is set, headers are ignored.
	CertificateField string
	// Enforce adds the matcher Label="tenant" to every selector.
	Enforce bool
	Label   string
}

// of returns the tenant of a request, and the matchers to add to its selectors; none without Enforce.
func (t Tenancy) of(r *http.Request) (string, []*labels.Matcher, *apiError) {
	tenant := cmp.Or(r.Header.Get(cmp.Or(t.Header, tenantHeader)), r.Header.Get(tenantHeader), t.Default)
	if t.CertificateField != "" {
		var err error
		if tenant, err = t.ofCertificate(r); err != nil {
			return "", nil, badData(err)
		}
	}
	if tenant != "" && (tenant != filepath.Base(tenant) || tenant == "." || tenant == "..") {
		return "", nil, badData(fmt.Errorf("tenant %q must be a single path element", tenant))
	}
	if strings.ContainsFunc(tenant, func(r rune) bool { return r < ' ' || r > '~' }) { // the header of a call to a store
		return "", nil, badData(fmt.Errorf("tenant %q has characters other than printable ASCII", tenant))
	}
	if !t.Enforce {
		return tenant, nil, nil
	}
	if tenant == "" {
		return "", nil, badData(errors.New("the request has no tenant"))
	}
	return tenant, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, t.Label, tenant)}, nil
}

// ofCertificate returns the tenant in the client certificate. A certificate without the field is an error.
func (t Tenancy) ofCertificate(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", errors.New("the client sent no certificate that names its tenant")
	}
	subject := r.TLS.PeerCertificates[0].Subject
	var values []string
	switch t.CertificateField {
	case "organization":
		values = subject.Organization
	case "organizationalUnit":
		values = subject.OrganizationalUnit
	case "commonName":
		values = []string{subject.CommonName}
	}
	if len(values) == 0 || values[0] == "" {
		return "", fmt.Errorf("the certificate of the client has no %s", t.CertificateField)
	}
	return values[0], nil
}
