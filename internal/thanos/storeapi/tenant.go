package storeapi

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// tenantKey is the key of Thanos' header in the metadata of calls.
const tenantKey = "thanos-tenant"

// WithTenant returns a context whose calls name a tenant to the store; "" names none.
func WithTenant(ctx context.Context, tenant string) context.Context {
	if tenant == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, tenantKey, tenant)
}

// TenantOf returns the tenant that a call to a server names; "" if it names none.
func TenantOf(ctx context.Context) string {
	received, _ := metadata.FromIncomingContext(ctx)
	if values := received.Get(tenantKey); len(values) > 0 {
		return values[0]
	}
	return ""
}
