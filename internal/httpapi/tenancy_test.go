package httpapi

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestTenancy_OfARequest(t *testing.T) {
	byDefault := Tenancy{Header: "X-Tenant", Default: "default-tenant", Enforce: true, Label: "tenant_id"}
	subject := pkix.Name{Organization: []string{"o"}, CommonName: "cn"}
	for name, c := range map[string]struct {
		Tenancy
		header, value string
		subject       *pkix.Name
		want          string // "": an error
	}{
		"the configured header":           {byDefault, "X-Tenant", "a", nil, "a"},
		"Thanos' header":                  {byDefault, "THANOS-TENANT", "a", nil, "a"},
		"no header":                       {byDefault, "X-Other", "a", nil, "default-tenant"},
		"a path":                          {byDefault, "X-Tenant", "../a", nil, ""},
		"a parent":                        {byDefault, "X-Tenant", "..", nil, ""},
		"not ASCII":                       {byDefault, "X-Tenant", "ü", nil, ""},
		"a control character":             {byDefault, "X-Tenant", "a\tb", nil, ""},
		"none where one is enforced":      {Tenancy{Enforce: true, Label: "tenant_id"}, "X", "a", nil, ""},
		"an organization":                 {Tenancy{CertificateField: "organization", Default: "d"}, "THANOS-TENANT", "a", &subject, "o"},
		"a common name":                   {Tenancy{CertificateField: "commonName"}, "X", "a", &subject, "cn"},
		"a certificate without the field": {Tenancy{CertificateField: "organizationalUnit", Default: "d"}, "THANOS-TENANT", "a", &subject, ""},
		"no certificate":                  {Tenancy{CertificateField: "commonName", Default: "d"}, "THANOS-TENANT", "a", nil, ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(c.header, c.value)
		if c.subject != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: *c.subject}}}
		}
		got, matchers, err := c.Tenancy.of(r)
		if (err == nil) != (c.want != "") || got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if enforced := len(matchers) == 1 && matchers[0].String() == `tenant_id="`+c.want+`"`; err == nil && enforced != c.Enforce {
			t.Errorf("%s: %v", name, matchers)
		}
	}
	if tenant, matchers, err := (Tenancy{}).of(httptest.NewRequest("GET", "/", nil)); tenant != "" || matchers != nil || err != nil {
		t.Errorf("without tenancy: %q %v %v", tenant, matchers, err)
	}
}

func TestParseShard(t *testing.T) {
	got, err := parseShard(`{"shard_index":1,"total_shards":3,"by":true,"labels":["a","b"]}`)
	if err != nil || got == nil || got.Index != 1 || got.Total != 3 || !got.By || len(got.Labels) != 2 {
		t.Errorf("%+v %v", got, err)
	}
	for _, none := range []string{"", "{}"} {
		if got, err := parseShard(none); got != nil || err != nil {
			t.Errorf("%q: %v %v", none, got, err)
		}
	}
	for _, bad := range []string{"x", "[1]", `{"shard_index":3,"total_shards":3}`, `{"shard_index":-1,"total_shards":3}`, `{"total_shards":-1}`, strings.Repeat(" ", shardMax+1)} {
		if got, err := parseShard(bad); err == nil {
			t.Errorf("%.20q is accepted: %+v", bad, got)
		}
	}
}
