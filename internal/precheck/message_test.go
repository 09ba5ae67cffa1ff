package precheck

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

var file = (&descriptorpb.FileDescriptorProto{}).ProtoReflect().Descriptor()

func TestMessage_CountsMessagesAndElements(t *testing.T) {
	for name, c := range map[string]struct {
		message *descriptorpb.FileDescriptorProto
		want    int
	}{
		"scalars are not counted": {&descriptorpb.FileDescriptorProto{Name: proto.String("a"), Syntax: proto.String("b")}, 0},
		"strings":                 {&descriptorpb.FileDescriptorProto{Dependency: []string{"", "x", ""}}, 3},
		"numbers":                 {&descriptorpb.FileDescriptorProto{PublicDependency: []int32{1, 2}}, 2},
		"one message":             {&descriptorpb.FileDescriptorProto{Options: &descriptorpb.FileOptions{}}, 1},
		"messages in messages": {&descriptorpb.FileDescriptorProto{MessageType: []*descriptorpb.DescriptorProto{
			{Field: []*descriptorpb.FieldDescriptorProto{{}, {}}}, {},
		}}, 4},
	} {
		raw, err := proto.Marshal(c.message)
		if err != nil {
			t.Fatal(err)
		}
		if err := Message(raw, file, c.want); err != nil {
			t.Errorf("%s: at the limit of %d: %v", name, c.want, err)
		}
		if err := Message(raw, file, c.want-1); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: one past the limit of %d: %v", name, c.want-1, err)
		}
	}
}

func TestMessage_PackedNumbersCountByTheirBytes(t *testing.T) {
	location := (&descriptorpb.SourceCodeInfo_Location{}).ProtoReflect().Descriptor()
	raw, err := proto.Marshal(&descriptorpb.SourceCodeInfo_Location{Path: make([]int32, 1000)})
	if err != nil {
		t.Fatal(err)
	}
	if err := Message(raw, location, 999); !errors.Is(err, ErrLimit) {
		t.Error(err)
	}
	if err := Message(raw, location, 1100); err != nil {
		t.Error(err)
	}
}

func TestMessage_InvalidBytesAreLeftToTheDecoder(t *testing.T) {
	for _, raw := range []string{"\x80", "\x0a\x05x", "\x22\x02\x0a\x07"} {
		if err := Message([]byte(raw), file, 1); err != nil {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestJSON_CountsObjectsAndElements(t *testing.T) {
	body := []byte(`{"series":[` + strings.Repeat("{},", 100) + `{}]}`)
	if err := JSON(body, 203); err != nil {
		t.Error(err)
	}
	if err := JSON(body, 202); !errors.Is(err, ErrLimit) {
		t.Error(err)
	}
}

// elements counts the messages and elements of a decoded message.
func elements(m protoreflect.Message) int {
	n := 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			n += v.Map().Len()
		case f.IsList():
			n += v.List().Len()
			for i := range v.List().Len() {
				if f.Message() != nil {
					n += elements(v.List().Get(i).Message())
				}
			}
		case f.Message() != nil:
			n += 1 + elements(v.Message())
		}
		return true
	})
	return n
}

// A message that Check accepts never decodes to more elements than its limit.
func FuzzCheck(f *testing.F) {
	raw, err := proto.Marshal(&descriptorpb.FileDescriptorProto{Dependency: []string{"a"}, MessageType: []*descriptorpb.DescriptorProto{{}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, 1)
	f.Add(bytes.Repeat([]byte{0x22, 0}, 50), 10)
	f.Fuzz(func(t *testing.T, src []byte, limit int) {
		limit &= 0xFFFF
		var m descriptorpb.FileDescriptorProto
		if Message(src, file, limit) != nil || proto.Unmarshal(src, &m) != nil {
			return
		}
		if n := elements(m.ProtoReflect()); n > limit {
			t.Errorf("%d elements, limit %d: %v", n, limit, reflect.TypeOf(&m))
		}
	})
}

// An element at the greatest nesting that is counted is counted.
func TestMessage_NestingIsCountedToItsLimit(t *testing.T) {
	m := (&descriptorpb.DescriptorProto{}).ProtoReflect().Descriptor()
	nested := func(depth int) []byte {
		var src []byte
		for range depth {
			src = append(protowire.AppendVarint([]byte{3<<3 | 2}, uint64(len(src))), src...) // nested_type
		}
		return src
	}
	for _, tt := range []struct {
		depth, limit int
		refused      bool
	}{{depthMax + 1, depthMax, true}, {depthMax + 1, depthMax + 1, false}, {depthMax, depthMax - 1, true}, {depthMax + 50, depthMax + 1, false}} {
		if err := Message(nested(tt.depth), m, tt.limit); (err != nil) != tt.refused {
			t.Errorf("%d messages in each other, at most %d: %v", tt.depth, tt.limit, err)
		}
	}
}
