// Package thanospb has StoreAPI's messages for protobuf's own runtime.
//
// store.proto and info.proto repeat Thanos' names and numbers. The generated types and
// descriptors serve requests, small responses and reflection. Streams of series do not
// use them: package storepb encodes and decodes these by hand, and uses the types in
// tests to check the result. `make generate` generates the code.
package thanospb
