#!/usr/bin/env bash
# Makes the .pb.go files from proto/. Needs protoc (Debian: protobuf-compiler); the
# Go plugin is the one of the release that go.mod names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
go build -o "$plugins/protoc-gen-go" google.golang.org/protobuf/cmd/protoc-gen-go
protoc --plugin="$plugins/protoc-gen-go" -I proto \
	--go_out=../../.. --go_opt=module=github.com/ferula-io/ferula \
	types/v1/types.proto push/v1/push.proto querier/v1/querier.proto google/v1/profile.proto
