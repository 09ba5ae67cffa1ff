package ingest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// node is an element of the metadata. Attributes are names and values in turn.
type jfrNode struct {
	name       string
	attributes []string
	children   []jfrNode
}

// classNode describes a class whose fields are `name class`, with a `*` for a key of the
// class' pool and `[]` for an array behind it.
func classNode(id int, name string, fields ...string) jfrNode {
	n := jfrNode{name: "class", attributes: []string{"id", fmt.Sprint(id), "name", name}}
	for _, f := range fields {
		name, class, _ := strings.Cut(f, " ")
		plain := strings.TrimSuffix(strings.TrimSuffix(class, "*"), "[]")
		attributes := []string{"name", name, "class", plain}
		if strings.HasSuffix(class, "*") {
			attributes = append(attributes, "constantPool", "true")
		}
		if strings.Contains(class, "[]") {
			attributes = append(attributes, "dimension", "1")
		}
		n.children = append(n.children, jfrNode{name: "field", attributes: attributes})
	}
	return n
}

func varints(v ...uint64) (b []byte) {
	for _, v := range v {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func utf8Text(s string) []byte { return append(varints(3, uint64(len(s))), s...) }

// metadataOf encodes the metadata event of a tree.
func metadataOf(root jfrNode) []byte {
	var texts []string
	var walk func(n jfrNode) []byte
	index := func(text string) uint64 {
		for i, t := range texts {
			if t == text {
				return uint64(i)
			}
		}
		texts = append(texts, text)
		return uint64(len(texts) - 1)
	}
	walk = func(n jfrNode) []byte {
		b := varints(index(n.name), uint64(len(n.attributes)/2))
		for _, a := range n.attributes {
			b = append(b, varints(index(a))...)
		}
		b = append(b, varints(uint64(len(n.children)))...)
		for _, c := range n.children {
			b = append(b, walk(c)...)
		}
		return b
	}
	tree := walk(root)
	b := varints(0, 0, 0, 0, 1, uint64(len(texts)))
	for _, t := range texts {
		b = append(b, utf8Text(t)...)
	}
	return append(b, tree...)
}

// pool is the constants of one class, each with its key in front.
type jfrPool struct {
	class     uint64
	constants [][]byte
}

func poolOf(delta int64, pools ...jfrPool) []byte {
	b := append(varints(0, 1, 0, 0, uint64(delta)), 0)
	if delta < 0 { // nine bytes at most, as in the JVM's encoding
		b = varints(0, 1, 0, 0)
		for shift := range 8 {
			b = append(b, byte(uint64(delta)>>(7*shift))|0x80)
		}
		b = append(b, byte(uint64(delta)>>56), 0)
	}
	b = append(b, varints(uint64(len(pools)))...)
	for _, p := range pools {
		b = append(b, varints(p.class, uint64(len(p.constants)))...)
		b = append(b, bytes.Join(p.constants, nil)...)
	}
	return b
}

func jfrEventOf(class uint64, fields ...[]byte) []byte {
	body := append(varints(class), bytes.Join(fields, nil)...)
	return append(varints(uint64(len(body)+1)), body...)
}

const madeTicks = 1000 // per second

// assemble puts the parts of a chunk together: header, events, metadata and two pools, the
// last of which refers to the first.
func assemble(startNS, durationNS int64, events, metadata []byte, first, second []jfrPool) []byte {
	b := make([]byte, jfrHeaderBytes)
	b = append(b, events...)
	at := func(raw []byte) int { // metadata and pools are events, too, of a class that is not known
		// The size, which is 0 in raw, takes 4 bytes.
		size := uint64(len(raw) + 3)
		offset := len(b)
		b = append(b, byte(size)|0x80, byte(size>>7)|0x80, byte(size>>14)|0x80, byte(size>>21))
		b = append(b, raw[1:]...)
		return offset
	}
	m := at(metadata)
	one := at(poolOf(0, first...))
	two := at(poolOf(int64(one-len(b)), second...))
	be := binary.BigEndian
	be.PutUint32(b, jfrMagic)
	be.PutUint16(b[4:], 2)
	be.PutUint64(b[8:], uint64(len(b)))
	be.PutUint64(b[16:], uint64(two))
	be.PutUint64(b[24:], uint64(m))
	be.PutUint64(b[32:], uint64(startNS))
	be.PutUint64(b[40:], uint64(durationNS))
	be.PutUint64(b[56:], madeTicks)
	be.PutUint32(b[64:], 1)
	return b
}

var basics = []jfrNode{
	classNode(101, "int"), classNode(102, "long"), classNode(103, "short"), classNode(104, "char"), classNode(105, "byte"),
	classNode(106, "boolean"), classNode(107, "float"), classNode(108, "double"), classNode(109, "java.lang.String"),
	classNode(120, "jdk.types.Symbol", "string 109"), classNode(121, "java.lang.Class", "name 120*"),
	classNode(122, "jdk.types.Method", "type 121*", "hidden 106", "name 120*"),
	classNode(123, "jdk.types.StackFrame", "method 122*", "lineNumber 101"),
	classNode(124, "jdk.types.StackTrace", "truncated 106", "frames 123[]"),
	classNode(125, "jdk.types.ThreadState", "number 101", "name 109"),
	classNode(126, "jdk.types.Other", "a 107", "b 108"),
	classNode(34, "jdk.ActiveSetting", "id 102", "name 109", "value 109"),
}

// made is a chunk with these events of these classes.
func made(classes []jfrNode, events ...[]byte) []byte {
	root := jfrNode{name: "root", children: []jfrNode{{name: "metadata", children: append(append([]jfrNode{}, basics...), classes...)}, {name: "region", attributes: []string{"locale", "en_US"}}}}
	symbols := jfrPool{120, [][]byte{
		append(varints(1), utf8Text("pkg/Main")...), append(varints(2), utf8Text("run")...),
		append(varints(3), utf8Text("pkg/Main$$Lambda$14/0x0001")...), append(varints(4), 5, 2, 'm', 0xE9), // Latin-1
		append(varints(5), 4, 2, 'h', 'i'), // UTF-16
		append(varints(6), 1),              // empty
	}}
	rest := []jfrPool{
		{126, [][]byte{append(varints(1), make([]byte, 12)...)}}, // skipped
		{121, [][]byte{varints(1, 1), varints(2, 3)}},
		{122, [][]byte{varints(1, 1, 0, 2), varints(2, 2, 1, 4), varints(3, 9, 0, 5), varints(4, 9, 0, 6)}},
		{124, [][]byte{varints(7, 0, 3, 1, 11, 2, 1<<31+5, 3, 0), varints(8, 1, 1, 4, 1)}},
		{125, [][]byte{append(varints(1, 3), utf8Text("STATE_SLEEPING")...), append(varints(2, 4), 2, 77)}},
	}
	return assemble(5e9, 2e9, bytes.Join(events, nil), metadataOf(root), rest, []jfrPool{symbols})
}

func decodeMade(t *testing.T, b []byte) (setting string, events []string, err error) {
	t.Helper()
	setting, err = decodeJFR(b, func(e *jfrEvent) error {
		events = append(events, fmt.Sprintf("%s %q %d×%d of %d: %v", e.kind.types[0], e.state, e.count, e.amount, e.context, e.stack))
		return nil
	})
	if err != nil && !errors.Is(err, errJFR) {
		t.Fatal(err)
	}
	return setting, events, err
}

var madeClasses = []jfrNode{
	classNode(30, "profiler.WallClockSample", "startTime 102", "stackTrace 124*", "state 125*", "samples 101", "contextId 102"),
	classNode(31, "jdk.ObjectAllocationInNewTLAB", "allocationSize 102", "tlabSize 102"),
	classNode(32, "jdk.ObjectAllocationOutsideTLAB", "tlabSize 102", "allocationSize 102"),
	classNode(33, "profiler.LiveObject", "a 105", "b 106", "c 107", "d 108", "e 109", "f 126", "g 101[]", "h 124*", "i 103", "j 104", "weight 102", "stackTrace 124*"),
	classNode(35, "jdk.ThreadPark", "duration 102"),
	classNode(36, "jdk.ExecutionSample", "state 125*"),
	classNode(37, "jdk.ObjectAllocationSample", "weight 105"), // a number of one byte
	classNode(38, "jdk.Unknown", "x 102"),
}

func TestDecodeJFR_EveryKindOfField(t *testing.T) {
	setting, got, err := decodeMade(t, made(madeClasses,
		jfrEventOf(30, varints(300, 7, 1, 5, 1<<40)),
		jfrEventOf(31, varints(10, 4000)),
		jfrEventOf(32, varints(4000, 10)),
		jfrEventOf(33, []byte{0x80, 0x81}, bytes.Repeat([]byte{0x82}, 12), utf8Text("text"), bytes.Repeat([]byte{0x83}, 12), varints(2, 300, 400), varints(500), varints(600, 700), varints(1234567), varints(8)),
		jfrEventOf(35, varints(2500)),
		jfrEventOf(35, varints(24*3600*madeTicks-1)),
		jfrEventOf(35, varints(24*3600*madeTicks)),
		jfrEventOf(36, varints(2)),
		jfrEventOf(37, []byte{0xFF}),
		jfrEventOf(38, varints(1)),
		jfrEventOf(34, varints(1), utf8Text("interval"), utf8Text("10ms")),
		jfrEventOf(34, varints(1), utf8Text("event"), utf8Text("wall")),
		jfrEventOf(34, varints(1), utf8Text("jstackdepth"), utf8Text("64")),
		jfrEventOf(34, varints(1), utf8Text("event"), varints(3, 100)), // its value is cut short
	))
	want := []string{
		fmt.Sprintf(`%s "STATE_SLEEPING" 5×0 of 1099511627776: [{pkg/Main.run 11} {pkg/Main$$Lambda.mé %d} {hi 0}]`, javaWall.types[0], math.MaxInt32),
		fmt.Sprintf(`%s "" 1×4000 of 0: []`, javaInTLAB.types[0]), fmt.Sprintf(`%s "" 1×10 of 0: []`, javaOutside.types[0]),
		fmt.Sprintf(`%s "" 1×1234567 of 0: [{unknown 1}]`, javaLive.types[0]),
		fmt.Sprintf(`%s "" 1×2500000000 of 0: []`, javaPark.types[0]), fmt.Sprintf(`%s "" 1×86399999000000 of 0: []`, javaPark.types[0]),
		fmt.Sprintf(`%s "" 1×86400000000000 of 0: []`, javaPark.types[0]),
		fmt.Sprintf(`%s "" 1×0 of 0: []`, javaCPU.types[0]), fmt.Sprintf(`%s "" 1×255 of 0: []`, javaAllocation.types[0]),
	}
	if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if setting != "wall" {
		t.Errorf("the setting is %q", setting)
	}
}

func TestDecodeJFR_TimesBelowZeroAreRefused(t *testing.T) {
	chunk := func(startNS, durationNS int64) []byte {
		b := made(nil)
		binary.BigEndian.PutUint64(b[32:], uint64(startNS))
		binary.BigEndian.PutUint64(b[40:], uint64(durationNS))
		return b
	}
	if _, err := decodeJFR(chunk(math.MaxInt64-1, 1), nil); err != nil {
		t.Errorf("greatest times: %v", err)
	}
	for name, b := range map[string][]byte{"start": chunk(-1, 5), "duration": chunk(5, -1), "end": chunk(math.MaxInt64, 1)} {
		if _, err := decodeJFR(b, nil); !errors.Is(err, errJFR) {
			t.Errorf("a %s below 0: %v", name, err)
		}
	}
}

func TestDecodeJFR_NumberOfChunksIsLimited(t *testing.T) {
	one := assemble(1, 1, nil, metadataOf(jfrNode{name: "root"}), nil, nil)
	if _, err := decodeJFR(bytes.Repeat(one, jfrChunksMax), nil); err != nil {
		t.Error(err)
	}
	if _, err := decodeJFR(bytes.Repeat(one, jfrChunksMax+1), nil); !errors.Is(err, errJFR) {
		t.Error(err)
	}
}

func TestDecodeJFR_BrokenEventsAreNamed(t *testing.T) {
	number := func(class string) []jfrNode {
		return []jfrNode{classNode(30, "profiler.WallClockSample", "samples "+class)}
	}
	nested := func(depth int) (classes []jfrNode) { // a class of classes
		classes = []jfrNode{classNode(30, "jdk.ThreadPark", "x 200", "duration 102")}
		for i := range depth {
			classes = append(classes, classNode(200+i, "c", fmt.Sprintf("x %d", 201+i)))
		}
		return append(classes, classNode(200+depth, "int"))
	}
	for name, tt := range map[string]struct {
		classes []jfrNode
		event   []byte
		want    string // "": no error
	}{
		"a negative count":         {number("102"), jfrEventOf(30, varints(1<<63)), ""}, // nine bytes have 64 bits
		"of no bytes":              {nil, []byte{0, 1}, "event at byte 68 has 0 bytes"},
		"longer than the chunk":    {nil, varints(1 << 30), "event at byte 68 has"},
		"cut short":                {number("102"), varints(2, 30), ""},
		"a float as a number":      {number("107"), jfrEventOf(30, make([]byte, 4)), "profiler.WallClockSample is cut short"},
		"an array as a number":     {number("102[]"), jfrEventOf(30, varints(1, 1)), "profiler.WallClockSample is cut short"},
		"a number without class":   {number("999"), jfrEventOf(30, varints(1)), "profiler.WallClockSample is cut short"},
		"a key of no class":        {number("999*"), jfrEventOf(30, varints(1)), ""},
		"a field without class":    {[]jfrNode{classNode(30, "jdk.ThreadPark", "x 999")}, jfrEventOf(30, varints(1)), "jdk.ThreadPark is cut short"},
		"nested as deep as it can": {nested(jfrNestingMax), jfrEventOf(30, varints(1, 1)), ""},
		"nested too deep":          {nested(jfrNestingMax + 1), jfrEventOf(30, varints(1, 1)), "jdk.ThreadPark is cut short"},
	} {
		if name == "a negative count" {
			tt.event = append(varints(11, 30), 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF)
			tt.want = "profiler.WallClockSample has a negative value"
		}
		if name == "cut short" {
			tt.want = "profiler.WallClockSample is cut short"
		}
		_, _, err := decodeMade(t, made(tt.classes, tt.event))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestDecodeJFR_BrokenMetadataIsNamed(t *testing.T) {
	deep := func(depth int) jfrNode {
		n := jfrNode{name: "leaf"}
		for range depth {
			n = jfrNode{name: "branch", children: []jfrNode{n}}
		}
		return n
	}
	for name, tt := range map[string]struct {
		root jfrNode
		want string
	}{
		"as deep as it can be": {deep(jfrNestingMax), ""},
		"too deep":             {deep(jfrNestingMax + 1), "elements are nested too deep"},
		"class without id":     {jfrNode{name: "class"}, "class without id"},
		"field without class":  {jfrNode{name: "class", attributes: []string{"id", "1"}, children: []jfrNode{{name: "field"}}}, "field without class"},
		"field of no class":    {jfrNode{name: "field", attributes: []string{"class", "1"}}, "field without class"},
		"field of a field":     {jfrNode{name: "class", attributes: []string{"id", "1"}, children: []jfrNode{{name: "field", attributes: []string{"class", "1"}, children: []jfrNode{{name: "field", attributes: []string{"class", "1"}}}}}}, "field without class"},
	} {
		_, err := decodeJFR(assemble(1, 1, nil, metadataOf(tt.root), nil, nil), nil)
		if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, errJFR) || !strings.Contains(err.Error(), "metadata: ") || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestDecodeJFR_BrokenPoolsAreNamed(t *testing.T) {
	metadata := metadataOf(jfrNode{name: "root", children: basics})
	for name, tt := range map[string]struct {
		p    jfrPool
		want string
	}{
		"unknown class":       {jfrPool{999, [][]byte{varints(1)}}, "pool of an unknown class"},
		"frames without end":  {jfrPool{124, [][]byte{varints(1, 0, 1<<40)}}, "too many items"},
		"text of no kind":     {jfrPool{120, [][]byte{varints(1, 6)}}, "string of an unknown kind"},
		"text that is longer": {jfrPool{120, [][]byte{varints(1, 3, 1<<40)}}, "cut short"},
	} {
		_, err := decodeJFR(assemble(1, 1, nil, metadata, []jfrPool{tt.p}, nil), nil)
		if !errors.Is(err, errJFR) || !strings.Contains(err.Error(), "constant pool: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestDecodeJFR_PoolsLeadBackwards(t *testing.T) {
	metadata := metadataOf(jfrNode{name: "root", children: basics})
	whole := assemble(1, 1, nil, metadata, nil, nil)
	pool := int(binary.BigEndian.Uint64(whole[16:]))
	delta := pool + 4 + 3 // after size, class, start and duration
	for name, tt := range map[string]struct {
		to int64
		ok bool
	}{"to itself": {0, true}, "forwards": {1, false}, "into the header": {int64(jfrHeaderBytes - 1 - pool), false}, "before the chunk": {math.MinInt64, false}} {
		b := bytes.Clone(whole)
		for i := range 8 {
			b[delta+i] = byte(uint64(tt.to)>>(7*i)) | 0x80
		}
		b[delta+8] = byte(uint64(tt.to) >> 56)
		if _, err := decodeJFR(b, nil); (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), "is followed by one at") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A few classes of classes describe very many parts in no bytes.
func TestDecodeJFR_NumberOfPartsIsLimited(t *testing.T) {
	classes := []jfrNode{classNode(30, "jdk.ThreadPark", "x 200")}
	for i := range jfrNestingMax {
		of := fmt.Sprint(201 + i)
		classes = append(classes, classNode(200+i, "c", "x "+of, "y "+of, "z "+of))
	}
	classes = append(classes, classNode(200+jfrNestingMax, "empty"))
	if _, _, err := decodeMade(t, made(classes, jfrEventOf(30))); err == nil {
		t.Error("no error")
	}
	const most = 64*4000 + 1<<16
	r := &reader{b: make([]byte, 4000), left: most}
	for range most {
		if !r.step() {
			t.Fatal(r.err)
		}
	}
	if r.step() || !errors.Is(r.err, errJFR) || r.at != len(r.b) {
		t.Errorf("one step more: %v at %d", r.err, r.at)
	}
	if before := r.err; r.step() || !errors.Is(r.err, before) {
		t.Error("the first error is replaced")
	}
}

// Texts that are keys or arrays are skipped: the setting behind them is still found.
func TestDecodeJFR_SettingsMayHaveFieldsOfAnyType(t *testing.T) {
	classes := []jfrNode{classNode(34, "jdk.ActiveSetting", "name 109", "value 120*", "value 109[]", "value 101", "value 109")}
	setting, _, err := decodeMade(t, made(classes, jfrEventOf(34, utf8Text("event"), varints(300), append(varints(2), 0, 0), varints(400), utf8Text("cpu"))))
	if err != nil || setting != "cpu" {
		t.Errorf("%q, %v", setting, err)
	}
}
