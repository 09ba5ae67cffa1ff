package block

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Symbols of many functions, frames and stacks, compared with maps.
func TestBuilder_NumbersAreThoseOfEqualSymbols(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	b := NewBuilder()
	texts, functions, frames, nodes := map[string]uint32{"": 0}, map[Function]uint32{}, map[Frame]uint32{}, map[[2]uint32]uint32{}
	same := func(what string, n uint32, known uint32, seen bool, count int) {
		if seen && n != known || !seen && int(n) != count {
			t.Fatalf("%s has number %d, want %d of %d", what, n, known, count)
		}
	}
	for range 20_000 {
		text := fmt.Sprint("t", r.IntN(3000))
		known, seen := texts[text]
		name := b.String([]byte(text))
		same("a text", name, known, seen, len(texts))
		texts[text] = name
		f := Function{Name: name, System: uint32(r.IntN(2)), File: uint32(r.IntN(2)), StartLine: int64(r.IntN(2))}
		known, seen = functions[f]
		function := b.Function(f)
		same("a function", function, known, seen, len(functions))
		functions[f] = function
		frame := Frame{function, uint32(r.IntN(2))}
		known, seen = frames[frame]
		n := b.Frame(frame.Function, frame.Line)
		same("a frame", n, known, seen, len(frames))
		frames[frame] = n
		node := [2]uint32{uint32(r.IntN(len(b.Parents))), n}
		known, seen = nodes[node]
		at := b.Node(node[0], node[1])
		same("a stack", at, known, seen, len(nodes)+1)
		nodes[node] = at
	}
	if len(functions) < 5000 || len(nodes) < 10_000 {
		t.Errorf("%d functions and %d stacks do not make the tables grow", len(functions), len(nodes))
	}
	sum := 0
	for text := range texts {
		sum += len(text)
	}
	if b.bytes != sum {
		t.Errorf("%d bytes of texts, want %d", b.bytes, sum)
	}
	for range 2000 {
		var stack []uint32
		for range r.IntN(5) {
			stack = append(stack, uint32(r.IntN(3)))
		}
		want := uint32(0)
		for _, f := range stack {
			want = b.Node(want, f)
		}
		for range 2 {
			if got := b.Stack(stack); got != want {
				t.Fatalf("stack %v is %d, want %d", stack, got, want)
			}
		}
	}
	if b.is(0, []uint32{1}) || !b.is(0, nil) || b.is(b.Stack([]uint32{1, 2}), []uint32{2}) || b.is(b.Stack([]uint32{1, 2}), []uint32{1, 1}) {
		t.Error("stacks are taken for others")
	}
}

func TestBuilder_StacksWithEqualHashesAreComparedByTheirFrames(t *testing.T) {
	b := NewBuilder()
	b.factor = 0 // all hashes are 0
	r := rand.New(rand.NewPCG(3, 9))
	for range 1500 { // the table grows
		stack := []uint32{uint32(r.IntN(40)), uint32(r.IntN(40))}
		want := b.Node(b.Node(0, stack[0]), stack[1])
		for range 2 {
			if got := b.Stack(stack); got != want {
				t.Fatalf("stack %v is %d, want %d", stack, got, want)
			}
		}
	}
	if n := b.stacks.n; n < 700 || n > 1500 || len(b.stacks.slots) <= 1<<10 {
		t.Errorf("%d stacks are in a table of %d slots", n, len(b.stacks.slots))
	}
}

// randomSymbols has texts, functions and frames that several stacks share.
func randomSymbols(r *rand.Rand, n int) *Builder {
	b := NewBuilder()
	for range n {
		b.Node(uint32(r.IntN(len(b.Parents))), b.Frame(b.Function(Function{Name: b.String(fmt.Appendf(nil, "f%d", r.IntN(9))), File: b.String(fmt.Appendf(nil, "%d.go", r.IntN(3))), StartLine: int64(r.IntN(2))}), uint32(r.IntN(3))))
	}
	return b
}

// long is path with files and lines.
func long(s *Symbols, node uint32) (text string) {
	for ; node != 0; node = s.Parents[node] {
		frame := s.Frames[s.NodeFrame[node]]
		f := s.Functions[frame.Function]
		text = fmt.Sprintf(";%s %s %s:%d:%d", s.Strings[f.Name], s.Strings[f.System], s.Strings[f.File], f.StartLine, frame.Line) + text
	}
	return text
}

func TestBuilder_AddKeepsStacks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	to, used := NewBuilder(), NewBuilder()
	for range 20 {
		s := &randomSymbols(r, 1+r.IntN(60)).Symbols
		sums := make([]int64, len(s.Parents))
		for range r.IntN(4) {
			sums[r.IntN(len(sums))] = 1
		}
		mine, some, wanted := added(to, s), used.AddUsed(s, sums), s.Used(sums)
		if mine[0] != 0 || some[0] != 0 {
			t.Fatal("the root is no root")
		}
		for i := 1; i < len(s.Parents); i++ {
			if got, want := long(&to.Symbols, mine[i]), long(s, uint32(i)); got != want {
				t.Fatalf("stack %d is %s, want %s", i, got, want)
			}
			below := false
			for j, sum := range sums {
				for up := uint32(j); sum != 0 && up != 0; up = s.Parents[up] {
					below = below || up == uint32(i)
				}
			}
			if wanted[i] != below || (some[i] != 0) != below || below && long(&used.Symbols, some[i]) != long(s, uint32(i)) {
				t.Fatalf("stack %d is used: %v, want %v; it is %s, want %s", i, wanted[i], below, long(&used.Symbols, some[i]), long(s, uint32(i)))
			}
		}
	}
}

func TestPartitioner_PartsKeepTheirStacks(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	for range 30 {
		s := &randomSymbols(r, 1+r.IntN(300)).Symbols
		p := NewPartitioner(s)
		for range 4 {
			p.Begin()
			wanted, named := map[uint32]bool{}, map[uint32]bool{}
			for range r.IntN(20) {
				stack := uint32(r.IntN(len(s.Parents)))
				p.Use(stack)
				for named[stack] = stack != 0; stack != 0; stack = s.Parents[stack] {
					wanted[stack] = true
				}
			}
			part, stacks, numbers := p.Part()
			delete(named, 0)
			if len(stacks) != len(named) || len(numbers) != len(stacks) || len(part.Parents) != len(wanted)+1 || part.Strings[0] != "" || !slices.IsSorted(stacks) {
				t.Fatalf("%d stacks, %d numbers, want %d; the part has %d, want %d", len(stacks), len(numbers), len(named), len(part.Parents)-1, len(wanted))
			}
			seen := map[uint32]bool{0: true}
			for i, stack := range stacks {
				if !named[stack] || seen[numbers[i]] || long(part, numbers[i]) != long(s, stack) {
					t.Fatalf("stack %d is %d in the part: %s, want %s", stack, numbers[i], long(part, numbers[i]), long(s, stack))
				}
				seen[numbers[i]] = true
			}
			names := map[string]bool{}
			for _, text := range part.Strings {
				if names[text] {
					t.Fatalf("the part has %q twice", text)
				}
				names[text] = true
			}
			if err := new(Symbols).decode(appendSymbols(nil, part)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestBuilder_ResetBuilderIsLikeANewOne(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 9))
	used := randomSymbols(r, 3000)
	used.Stack([]uint32{1, 2, 3})
	for range 20 {
		used.Reset()
		s := &randomSymbols(r, 1+r.IntN(300)).Symbols
		fresh := NewBuilder()
		if got, want := added(used, s), added(fresh, s); !slices.Equal(got, want) || !reflect.DeepEqual(used.Symbols, fresh.Symbols) || used.bytes != fresh.bytes {
			t.Fatalf("%+v of %d bytes, want %+v of %d", used.Symbols, used.bytes, fresh.Symbols, fresh.bytes)
		}
		for range 20 {
			stack := []uint32{uint32(r.IntN(len(s.Frames))), uint32(r.IntN(len(s.Frames)))}
			if got, want := used.Stack(stack), fresh.Stack(stack); got != want {
				t.Fatalf("stack %v is %d, want %d", stack, got, want)
			}
		}
	}
}

func TestBuilder_NodesThatFollowTheirParentsAreNotInTheTable(t *testing.T) {
	b, want := NewBuilder(), map[[2]uint32]uint32{}
	r := rand.New(rand.NewPCG(8, 9))
	for range 3000 {
		node := uint32(0)
		for depth := range 30 {
			frame := uint32(depth * 10)
			if depth < 12 {
				frame += uint32(r.IntN(2))
			}
			key := [2]uint32{node, frame}
			node = b.Node(node, frame)
			if known, ok := want[key]; ok && known != node || !ok && int(node) != len(want)+1 {
				t.Fatalf("node %d, want %d of %d", node, known, len(want))
			}
			want[key] = node
		}
	}
	following := 0
	for n, parent := range b.Parents {
		if n > 0 && int(parent) == n-1 {
			following++
		}
	}
	if inTable := len(want) - following; b.nodes.n != inTable || 3*inTable > len(want) || len(b.nodes.slots) > 4*inTable {
		t.Errorf("%d of %d nodes are in a table of %d slots; %d follow their parents", b.nodes.n, len(want), len(b.nodes.slots), following)
	}
}

func TestBuilder_SealedBuilderKeepsItsSymbols(t *testing.T) {
	b := randomSymbols(rand.New(rand.NewPCG(5, 9)), 2000)
	b.Stack([]uint32{1, 2})
	want, before := b.Symbols, b.Bytes()
	b.Seal()
	// Few nodes of random symbols follow their parent. Every other node has a slot of the table, which Seal frees.
	if saved := before - b.Bytes(); !reflect.DeepEqual(b.Symbols, want) || saved < 6*len(want.Parents) {
		t.Errorf("%d bytes are freed of %d", saved, before)
	}
}

func TestBuilder_AppendAddedKeepsWhatIsThere(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 9))
	b, dst := NewBuilder(), []uint32{0}
	for range 10 {
		s := &randomSymbols(r, 1+r.IntN(60)).Symbols
		from := len(dst)
		dst = b.AppendAdded(dst, s)
		if len(dst)-from != len(s.Parents)-1 {
			t.Fatalf("%d stacks, want %d", len(dst)-from, len(s.Parents)-1)
		}
		for i := 1; i < len(s.Parents); i++ {
			if got, want := long(&b.Symbols, dst[from+i-1]), long(s, uint32(i)); got != want {
				t.Fatalf("stack %d is %s, want %s", i, got, want)
			}
		}
	}
}

func TestAppendPieces_KeepTheBytesWithoutCopyingPieces(t *testing.T) {
	var pieces [][]byte
	var want []byte
	for i := range 300 {
		part := bytes.Repeat([]byte{byte(i)}, 997*(i%40))
		pieces, want = appendPieces(pieces, part), append(want, part...)
	}
	if !bytes.Equal(bytes.Join(pieces, nil), want) || len(pieces) < 5 {
		t.Fatalf("%d pieces of %d bytes", len(pieces), len(want))
	}
	for i, piece := range pieces {
		if cap(piece) > pieceMax || i < len(pieces)-1 && len(piece) < cap(piece) {
			t.Errorf("piece %d has %d of %d bytes", i, len(piece), cap(piece))
		}
	}
}

func TestAppendCompressed_TakesLittleMemory(t *testing.T) {
	section := make([]byte, 300<<10) // longer than a block of zstd, so that the encoder has a window
	for i := range section {
		section[i] = byte(i * i >> 7)
	}
	for name, create := range map[string]func() (*zstd.Encoder, error){"section": newEncoder, "page": newPageEncoder} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w, err := create()
		if err != nil {
			t.Fatal(err)
		}
		stored := w.EncodeAll(section, nil)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 10<<20 {
			t.Errorf("%s: an encoder takes %d bytes", name, took)
		}
		if b, err := decompressIn(nil, stored, len(section)); err != nil || !bytes.Equal(b, section) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

// A client chooses the lines of functions, and in which order it names them, so it could choose those whose hashes are equal.
func TestBuilder_HostileSymbolsAreSpreadOverTheTables(t *testing.T) {
	const n, golden = 8000, uint64(0x9E3779B97F4A7C15)
	inverse := golden
	for range 6 {
		inverse *= 2 - golden*inverse
	}
	b := NewBuilder()
	mixed := uint64(1) << 32 // the name and the file
	mixed *= golden
	for i := range uint32(n) {
		b.Function(Function{Name: 1, StartLine: int64(mixed ^ mixed>>29 ^ uint64(i)*inverse)}) // the hashes of a known factor are 0, 1, 2, …
		b.Function(Function{Name: 2, System: i, StartLine: int64(i) << 20})
	}
	for function, line := uint32(0), uint32(0); len(b.Frames) < n; line++ {
		if (uint64(function)<<32|uint64(line))*golden>>50 == 0 {
			b.Frame(function, line)
			function = uint32(len(b.Frames)) % 1000
		}
	}
	functions := longestRun(len(b.functions.slots), func(i int) bool { return b.functions.slots[i] != 0 })
	frames := longestRun(len(b.frames.slots), func(i int) bool { return b.frames.slots[i] != 0 })
	if functions > n/10 || frames > n/10 {
		t.Errorf("%d functions and %d frames in one run", functions, frames)
	}
}

func longestRun(n int, used func(int) bool) (longest int) {
	run := 0
	for i := range n {
		if run++; !used(i) {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

var errStop = errors.New("stop")

// datasetSymbols are the symbols of one part.
type datasetSymbols struct {
	Dataset string
	Symbols *Symbols
}

// encodeParts encodes all parts.
func encodeParts(parts []datasetSymbols) (*PartsEncoder, error) {
	e := &PartsEncoder{}
	for _, p := range parts {
		if err := e.Add(p.Dataset, p.Symbols); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func mustEncode(parts []datasetSymbols) *PartsEncoder {
	e, err := encodeParts(parts)
	if err != nil {
		panic(err)
	}
	return e
}

// added adds symbols to a builder and returns for each node its number in the builder.
func added(b *Builder, s *Symbols) []uint32 { return b.AppendAdded([]uint32{0}, s) }
