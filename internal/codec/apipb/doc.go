// Package apipb has the messages of Thanos' gRPC services for rules, targets and
// metadata. They are generated from api.proto by `make generate`; the field numbers are
// those of Thanos.
//
// Package promapi builds them from responses of Prometheus. The services are not here:
// the packages that serve them describe them.
package apipb
