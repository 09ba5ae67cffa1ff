// Package apipb holds the messages by which Thanos' components ask each other for
// rules, targets and metadata: generated from api.proto by `make generate`; its field numbers
// are Thanos'.
//
// Package promapi makes them of Prometheus' answers; nothing else is here, and no
// service, since those are described by hand where they are served.
package apipb
