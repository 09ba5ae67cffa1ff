// Package apipb has the messages of Thanos' gRPC services for rules, targets, metadata and
// statistics of TSDBs. `make generate` generates them from api.proto, which has the field
// numbers of Thanos.
//
// Package sources fills the messages from responses of Prometheus. The grpc.ServiceDesc of each
// service is not generated: it is in the package that serves it.
package apipb
