// Package apipb has the messages of Thanos' gRPC services for rules, targets,
// metadata and statistics of TSDBs. They are generated from api.proto by `make generate`; the field numbers are
// those of Thanos.
//
// Package promapi fills the messages from responses of Prometheus. The descriptions of the
// gRPC services are not generated: each is in the package that serves it, such as localrules.
package apipb
