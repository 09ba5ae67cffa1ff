// Package apipb holds the messages by which Thanos' components ask each other for
// rules, targets and metadata: generated from api.proto, whose field numbers are
// Thanos'.
//
// Package promapi makes them of Prometheus' answers; nothing else is here, and no
// service, since those are described by hand where they are served.
package apipb

//go:generate protoc -I ../../.. --go_out=../../.. --go_opt=paths=source_relative internal/codec/apipb/api.proto
