// Package thanospb is StoreAPI's messages as protobuf's own runtime knows them.
//
// What comes in are store.proto and info.proto, which repeat Thanos' names and
// numbers; what goes out are generated types and descriptors, for the requests,
// for small answers, and for reflection. Streams of series do not pass through
// here: package storepb reads and writes them by hand, and uses these types as
// its oracle in tests. `make generate` makes the code from the .proto files.
package thanospb
