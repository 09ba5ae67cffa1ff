// Command protogen makes the repository's .pb.go files: `make generate` runs it from the
// directory tools.
//
// It compiles the .proto files below internal/ with a compiler written in Go, passes the result
// to protoc-gen-go, and writes the .pb.go files to their packages. Both programs are pinned by
// tools/go.mod, so every machine makes the same bytes. The .proto files are ferula's own.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// A set is a list of .proto files that are compiled together. imports is the directory, below the
// repository's root, to which import statements are relative.
type set struct {
	imports string
	files   []string
	options string
}

func sets() []set {
	const module = "module=github.com/ferula-io/ferula"
	return []set{
		{".", []string{"internal/thanos/storepb/apipb/api.proto"}, module},
		{".", []string{"internal/thanos/storepb/thanospb/store.proto", "internal/thanos/storepb/thanospb/info.proto"}, module},
		{"internal/profiles/profilepb/proto", []string{"types/v1/types.proto", "push/v1/push.proto", "querier/v1/querier.proto", "google/v1/profile.proto"}, module},
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: protogen REPOSITORY")
		os.Exit(2)
	}
	for _, s := range sets() {
		if err := s.generate(context.Background(), os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "protogen:", err)
			os.Exit(1)
		}
	}
}

// generate writes the Go files of s below root.
func (s set) generate(ctx context.Context, root string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{filepath.Join(root, s.imports)}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, s.files...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: s.files, Parameter: &s.options, ProtoFile: withImports(files)}
	response, err := runPlugin(ctx, request)
	if err != nil {
		return err
	}
	for _, f := range response.GetFile() {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
		fmt.Println(f.GetName())
	}
	return nil
}

// withImports returns files and everything they import, imports first.
func withImports(files linker.Files) []*descriptorpb.FileDescriptorProto {
	var all []*descriptorpb.FileDescriptorProto
	seen := map[string]bool{}
	var add func(f linker.File)
	add = func(f linker.File) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			if dep := f.FindImportByPath(f.Imports().Get(i).Path()); dep != nil {
				add(dep)
			}
		}
		all = append(all, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range files {
		add(f)
	}
	return all
}

// runPlugin runs the protoc-gen-go that tools/go.mod names.
func runPlugin(ctx context.Context, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	command.Stdin, command.Stderr = bytes.NewReader(in), os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("protoc-gen-go: %w", err)
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(out, response); err != nil {
		return nil, fmt.Errorf("response of protoc-gen-go: %w", err)
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response, nil
}
