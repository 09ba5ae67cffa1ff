package pprof

import (
	"cmp"
	"math"
	"slices"
)

// idTable maps ids to numbers. Ids are usually 1, 2, 3 and so on, for which it uses a
// slice. Other ids are in a map.
type idTable struct {
	dense  []uint32 // number + 1
	sparse map[uint64]uint32
}

// fill maps the ids of n messages to 0 to n-1. If an id is 0 or a duplicate, fill returns the
// number of the message with this id, and false.
func (t *idTable) fill(n int, id func(i int) uint64) (int, bool) {
	size := 2*n + 64
	if cap(t.dense) < size {
		t.dense = make([]uint32, size)
	}
	t.dense = t.dense[:size]
	clear(t.dense)
	clear(t.sparse)
	for i := range n {
		v := id(i)
		if v == 0 {
			return i, false
		}
		if v < uint64(size) {
			if t.dense[v] != 0 {
				return i, false
			}
			t.dense[v] = uint32(i) + 1
			continue
		}
		if t.sparse == nil {
			t.sparse = map[uint64]uint32{}
		}
		if _, twice := t.sparse[v]; twice {
			return i, false
		}
		t.sparse[v] = uint32(i)
	}
	return 0, true
}

func (t *idTable) find(id uint64) (uint32, bool) {
	if id < uint64(len(t.dense)) {
		i := t.dense[id]
		return i - 1, i != 0
	}
	i, ok := t.sparse[id]
	return i, ok
}

// resolve replaces ids by numbers and validates all references. An invalid reference to a
// text is an error. Lines without their function and samples without one of their locations
// are dropped. A location without its mapping stays.
func (p *Profile) resolve() error {
	if len(p.strings) == 0 {
		return corrupt("no string table")
	}
	if s := p.strings[0]; s.from != s.to {
		return corrupt("the first string is not empty")
	}
	if len(p.SampleTypes) == 0 {
		return corrupt("no sample types")
	}
	if err := p.checkTexts(); err != nil {
		return err
	}
	for i := range p.Samples {
		from, to := int(p.Samples[i].valFrom), len(p.values)
		if i+1 < len(p.Samples) {
			to = int(p.Samples[i+1].valFrom)
		}
		if to-from != len(p.SampleTypes) {
			return corrupt("sample %d has %d values for %d sample types", i, to-from, len(p.SampleTypes))
		}
	}
	if err := p.resolveLines(); err != nil {
		return err
	}
	if i, ok := p.byID.fill(len(p.Mappings), func(i int) uint64 { return p.Mappings[i].id }); !ok {
		return corrupt("mapping %d has id %d, which is 0 or a duplicate", i, p.Mappings[i].id)
	}
	for i := range p.Locations {
		l := &p.Locations[i]
		if l.mappingID == 0 {
			continue
		}
		m, ok := p.byID.find(l.mappingID)
		if !ok {
			p.Repairs.Mapping++ // the address has no file; the frames stay
			continue
		}
		l.Mapping = int32(m)
	}
	return p.resolveStacks()
}

func (p *Profile) resolveLines() error {
	p.assignFunctionIDs()
	if i, ok := p.byID.fill(len(p.Functions), func(i int) uint64 { return p.Functions[i].id }); !ok {
		return corrupt("function %d has id %d, which is 0 or a duplicate", i, p.Functions[i].id)
	}
	for i := range p.Locations {
		l := &p.Locations[i]
		to := l.From
		for at := l.From; at < l.To; at++ {
			line := p.Lines[at]
			var ok bool
			if line.Function, ok = p.byID.find(line.id); !ok {
				p.Repairs.Function++
				continue
			}
			p.Lines[to] = line
			to++
		}
		l.To = to
	}
	return nil
}

// assignFunctionIDs assigns ids if no function has one, as in profiles of .NET's SDK. In these
// profiles each location has one line, and the first function belongs to the first location, and
// so on. Other profiles do not change.
func (p *Profile) assignFunctionIDs() {
	for i := range p.Functions {
		if p.Functions[i].id != 0 {
			return
		}
	}
	if len(p.Locations) != len(p.Functions) {
		return
	}
	for i := range p.Locations {
		if l := &p.Locations[i]; l.To-l.From != 1 || p.Lines[l.From].id != 0 {
			return
		}
	}
	for i := range p.Functions {
		p.Functions[i].id = uint64(i) + 1
		p.Lines[p.Locations[i].From].id = uint64(i) + 1
	}
	p.Repairs.Function += len(p.Functions)
}

func (p *Profile) resolveStacks() error {
	if i, ok := p.byID.fill(len(p.Locations), func(i int) uint64 { return p.Locations[i].id }); !ok {
		return corrupt("location %d has id %d, which is 0 or a duplicate", i, p.Locations[i].id)
	}
	if cap(p.stacks) < len(p.locIDs) {
		p.stacks = make([]uint32, 0, cap(p.locIDs))
	}
	p.stacks = p.stacks[:len(p.locIDs)]
	missing := false
	for i, id := range p.locIDs {
		n, ok := p.byID.find(id)
		if !ok {
			missing, n = true, noLocation
		}
		p.stacks[i] = n
	}
	if missing {
		p.dropUnresolved()
	}
	return nil
}

const noLocation = math.MaxUint32

// dropUnresolved drops the samples with a missing location.
func (p *Profile) dropUnresolved() {
	n := len(p.Samples)
	p.Samples = slices.DeleteFunc(p.Samples, func(s Sample) bool { return slices.Contains(p.Stack(&s), noLocation) })
	p.Repairs.Location += n - len(p.Samples)
	for i, at := range p.stacks {
		if at == noLocation { // no sample refers to it any more, but Stacks returns it
			p.stacks[i] = 0
		}
	}
	if len(p.Locations) == 0 {
		p.stacks = p.stacks[:0]
		for i := range p.Samples {
			p.Samples[i].locFrom, p.Samples[i].locTo = 0, 0
		}
	}
}

// cutStacks removes frames at the leaf from stacks that have more than Limits.Depth frames.
func (p *Profile) cutStacks() {
	depth, widest := uint32(min(p.limits.Depth, math.MaxInt32)), uint32(1)
	for i := range p.Locations {
		l := &p.Locations[i]
		if l.To-l.From > depth {
			l.From = l.To - depth // the outermost caller is last
		}
		widest = max(widest, l.To-l.From)
	}
	for i := range p.Samples {
		s := &p.Samples[i]
		n := s.locTo - s.locFrom
		if uint64(n)*uint64(widest) <= uint64(depth) {
			continue
		}
		frames, from := uint32(0), s.locTo
		for from > s.locFrom {
			if frames += p.width(p.stacks[from-1]); frames > depth {
				break
			}
			from--
		}
		if from > s.locFrom {
			s.locFrom = from
			p.Repairs.Depth++
		}
	}
}

// width returns the number of frames of a location. An address without functions counts as
// one.
func (p *Profile) width(location uint32) uint32 {
	l := &p.Locations[location]
	return max(1, l.To-l.From)
}

// exactNodesFrames limits the frames of a profile, counted over all its stacks, for which every
// frame counts as a node. This overestimates, but is cheap. If a profile has more frames, or more
// than Limits.Nodes, sharedNodes sorts the stacks and counts frames that they share once.
const exactNodesFrames = 256 << 10

// countNodes counts the nodes in the tree of all stacks and checks their limit.
func (p *Profile) countNodes() error {
	total := 0
	for i := range p.Samples {
		for _, location := range p.Stack(&p.Samples[i]) {
			total += int(p.width(location))
		}
	}
	if p.nodes = total; total > min(exactNodesFrames, p.limits.Nodes) {
		p.nodes = p.sharedNodes()
	}
	if p.nodes > p.limits.Nodes {
		return tooMany("nodes in the tree of all stacks", p.nodes, p.limits.Nodes, p.limits.Flags.Of("Nodes"))
	}
	return nil
}

// sharedNodes counts the nodes of a tree whose nodes are locations. It sorts the stacks by their
// locations from the root on. Then each stack adds the frames after those that it shares with the
// stack before. For example, main;a;b and main;a;c have four nodes: main, a, b and c.
func (p *Profile) sharedNodes() int {
	p.order = p.order[:0]
	for i := range p.Samples {
		p.order = append(p.order, uint32(i))
	}
	stack := func(i uint32) []uint32 { return p.Stack(&p.Samples[i]) }
	slices.SortFunc(p.order, func(a, b uint32) int {
		x, y := stack(a), stack(b)
		n := sharedEnd(x, y)
		if n == len(x) || n == len(y) {
			return len(x) - len(y)
		}
		return cmp.Compare(x[len(x)-1-n], y[len(y)-1-n])
	})
	nodes := 0
	var last []uint32
	for _, i := range p.order {
		own := stack(i)
		for _, location := range own[:len(own)-sharedEnd(own, last)] {
			nodes += int(p.width(location))
		}
		last = own
	}
	return nodes
}

// sharedEnd returns the number of locations that two stacks have in common from the root on. The
// root is at the end of a stack.
func sharedEnd(x, y []uint32) int {
	n := 0
	for n < len(x) && n < len(y) && x[len(x)-1-n] == y[len(y)-1-n] {
		n++
	}
	return n
}
func (p *Profile) checkTexts() error {
	n := uint32(len(p.strings))
	for i, t := range p.SampleTypes {
		if t.Type >= n || t.Unit >= n {
			return corrupt("sample type %d has no string", i)
		}
	}
	if p.PeriodType.Type >= n || p.PeriodType.Unit >= n {
		return corrupt("the period type has no string")
	}
	for i := range p.Functions {
		if f := &p.Functions[i]; f.Name >= n || f.System >= n || f.File >= n {
			return corrupt("function %d has no string", i)
		}
	}
	for i, m := range p.Mappings {
		if m.File >= n || m.BuildID >= n {
			return corrupt("mapping %d has no string", i)
		}
	}
	for i, l := range p.labels {
		if l.Key >= n || l.Text >= n {
			return corrupt("label %d has no string", i)
		}
	}
	return nil
}
