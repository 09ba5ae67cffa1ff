package pprof

// idTable finds the number of an id. Ids are nearly always 1, 2, 3 and so on, and
// then a slice does; a map takes the others.
type idTable struct {
	dense  []uint32 // number + 1
	sparse map[uint64]uint32
}

// fill maps the ids of n things; false and the number of the second one if an id is
// 0 or there twice.
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

// resolve turns ids into numbers and checks every reference.
func (p *Profile) resolve() error {
	if len(p.strings) == 0 {
		return corrupt("there is no string table")
	}
	if s := p.strings[0]; s.from != s.to {
		return corrupt("the first string is not empty")
	}
	if len(p.SampleTypes) == 0 {
		return corrupt("there are no sample types")
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
			return corrupt("sample %d has %d values where there are %d sample types", i, to-from, len(p.SampleTypes))
		}
	}
	if i, ok := p.byID.fill(len(p.Functions), func(i int) uint64 { return p.Functions[i].id }); !ok {
		return corrupt("function %d has id %d, which is 0 or there twice", i, p.Functions[i].id)
	}
	for i := range p.Lines {
		line := &p.Lines[i]
		var ok bool
		if line.Function, ok = p.byID.find(line.id); !ok {
			return corrupt("line %d is of function %d, which is not there", i, line.id)
		}
	}
	if i, ok := p.byID.fill(len(p.Mappings), func(i int) uint64 { return p.Mappings[i].id }); !ok {
		return corrupt("mapping %d has id %d, which is 0 or there twice", i, p.Mappings[i].id)
	}
	for i := range p.Locations {
		l := &p.Locations[i]
		if l.mappingID == 0 {
			continue
		}
		m, ok := p.byID.find(l.mappingID)
		if !ok {
			return corrupt("location %d is in mapping %d, which is not there", i, l.mappingID)
		}
		l.Mapping = int32(m)
	}
	return p.resolveStacks()
}

func (p *Profile) resolveStacks() error {
	if i, ok := p.byID.fill(len(p.Locations), func(i int) uint64 { return p.Locations[i].id }); !ok {
		return corrupt("location %d has id %d, which is 0 or there twice", i, p.Locations[i].id)
	}
	if cap(p.stacks) < len(p.locIDs) {
		p.stacks = make([]uint32, 0, cap(p.locIDs))
	}
	p.stacks = p.stacks[:len(p.locIDs)]
	for i, id := range p.locIDs {
		n, ok := p.byID.find(id)
		if !ok {
			return corrupt("sample %d has location %d, which is not there", p.sampleOf(i), id)
		}
		p.stacks[i] = n
	}
	return nil
}

func (p *Profile) sampleOf(loc int) int {
	for i, s := range p.Samples {
		if loc < int(s.locTo) {
			return i
		}
	}
	return len(p.Samples)
}

func (p *Profile) checkTexts() error {
	n := uint32(len(p.strings))
	for i, t := range p.SampleTypes {
		if t.Type >= n || t.Unit >= n {
			return corrupt("sample type %d has no text", i)
		}
	}
	if p.PeriodType.Type >= n || p.PeriodType.Unit >= n {
		return corrupt("the period type has no text")
	}
	for i := range p.Functions {
		if f := &p.Functions[i]; f.Name >= n || f.System >= n || f.File >= n {
			return corrupt("function %d has no text", i)
		}
	}
	for i, m := range p.Mappings {
		if m.File >= n || m.BuildID >= n {
			return corrupt("mapping %d has no text", i)
		}
	}
	for i, l := range p.labels {
		if l.Key >= n || l.Text >= n {
			return corrupt("label %d has no text", i)
		}
	}
	return nil
}
