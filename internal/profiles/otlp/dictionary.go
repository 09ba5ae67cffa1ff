package otlp

func (d *decoder) dictionary(src []byte) error {
	var count [8]int
	return each(src, func(f field) error {
		if f.number < 1 || f.number > 7 {
			return nil
		}
		i := count[f.number]
		count[f.number]++
		switch f.number {
		case 1:
			return at("mapping_table", i, f.message(d.mapping))
		case 2:
			return at("location_table", i, f.message(d.location))
		case 3:
			return at("function_table", i, f.message(d.function))
		case 4:
			return at("link_table", i, f.message(d.link))
		case 5:
			return at("string_table", i, f.message(func(b []byte) error { return add(d, &d.r.strings, b) }))
		case 6:
			return at("attribute_table", i, f.message(d.attribute))
		}
		return at("stack_table", i, f.message(d.stack))
	})
}

func (d *decoder) mapping(src []byte) error {
	var m Mapping
	err := each(src, func(f field) error {
		if f.number == 4 {
			return f.index(&m.File)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return add(d, &d.r.mappings, m)
}

func (d *decoder) location(src []byte) error {
	l := Location{Lines: Range{From: len(d.r.lines)}}
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return f.index(&l.Mapping)
		case 2:
			return f.varint(&l.Address)
		case 3:
			return at("lines", len(d.r.lines)-l.Lines.From, f.message(d.line))
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.Lines.To = len(d.r.lines)
	return add(d, &d.r.locations, l)
}

func (d *decoder) line(src []byte) error {
	var l Line
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return f.index(&l.Function)
		case 2:
			return f.signed(&l.Line)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return add(d, &d.r.lines, l)
}

func (d *decoder) function(src []byte) error {
	var fn Function
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return f.index(&fn.Name)
		case 2:
			return f.index(&fn.System)
		case 3:
			return f.index(&fn.File)
		case 4:
			return f.signed(&fn.StartLine)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return add(d, &d.r.functions, fn)
}

func (d *decoder) link(src []byte) error {
	var l Link
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return identifier(f, "trace_id", l.Trace[:])
		case 2:
			return identifier(f, "span_id", l.Span[:])
		}
		return nil
	})
	if err != nil {
		return err
	}
	return add(d, &d.r.links, l)
}

func (d *decoder) attribute(src []byte) error {
	var a Attribute
	err := each(src, func(f field) error {
		switch f.number {
		case 1:
			return f.index(&a.key)
		case 2:
			return f.message(func(b []byte) error { return value(b, &a.Value) })
		}
		return nil
	})
	if err != nil {
		return err
	}
	return add(d, &d.r.table, a)
}

func (d *decoder) stack(src []byte) error {
	var list Range
	err := each(src, func(f field) error {
		if f.number == 1 {
			return d.listIndexes(f, &list)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return add(d, &d.r.stacks, list)
}

// check checks the references within the dictionary.
func (r *Request) check() error {
	strings := func(list string, i int, numbers ...int32) error {
		for _, n := range numbers {
			if err := checked("string", "string", n, len(r.strings)); err != nil {
				return at(list, i, err)
			}
		}
		return nil
	}
	for i, m := range r.mappings {
		if err := strings("mapping_table", i, m.File); err != nil {
			return err
		}
	}
	for i, f := range r.functions {
		if err := strings("function_table", i, f.Name, f.System, f.File); err != nil {
			return err
		}
	}
	for i := range r.table {
		a := &r.table[i]
		if err := strings("attribute_table", i, a.key, a.Value.number); err != nil {
			return err
		}
		if a.Value.Kind == reference {
			a.Value.Kind, a.Value.Text = Text, r.text(a.Value.number)
		}
	}
	for i, l := range r.locations {
		if err := checked("mapping", "mapping", l.Mapping, len(r.mappings)); err != nil {
			return at("location_table", i, err)
		}
		for _, line := range r.lines[l.Lines.From:l.Lines.To] {
			if err := checked("function", "function", line.Function, len(r.functions)); err != nil {
				return at("location_table", i, err)
			}
		}
	}
	for i, list := range r.stacks {
		for _, n := range r.indexes[list.From:list.To] {
			if err := checked("location", "location", n, len(r.locations)); err != nil {
				return at("stack_table", i, err)
			}
		}
	}
	return nil
}
