package ingest

import (
	"strconv"
	"unicode/utf16"
)

// reader reads numbers and texts. The first error is sticky.
type reader struct {
	b    []byte
	at   int
	left int // steps that are left; the limit exists because nested classes take many steps for a few bytes
	err  error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = corruptJFR("%s at byte %d", what, r.at)
	}
	r.at = len(r.b)
}

func (r *reader) step() bool {
	if r.left--; r.left < 0 {
		r.fail("too many parts")
	}
	return r.err == nil
}

func (r *reader) byte() byte {
	if r.at >= len(r.b) {
		r.fail("cut short")
		return 0
	}
	r.at++
	return r.b[r.at-1]
}

// varint reads a number of at most nine bytes, of which the last has eight bits.
func (r *reader) varint() (v uint64) {
	for shift := uint(0); shift < 56; shift += 7 {
		b := r.byte()
		if v |= uint64(b&0x7F) << shift; b < 0x80 {
			return v
		}
	}
	return v | uint64(r.byte())<<56
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)-r.at) {
		r.fail("cut short")
		return nil
	}
	r.at += int(n)
	return r.b[r.at-int(n) : r.at]
}

// count reads a number of items. Each item has at least one byte: if fewer bytes remain, it
// fails.
func (r *reader) count() int {
	n := r.varint()
	if n > uint64(len(r.b)-r.at) {
		r.fail("too many items")
		return 0
	}
	return int(n)
}

// string reads a text. A text that is a reference to a constant pool is read as empty: no needed
// text is in such a pool.
func (r *reader) string() string {
	switch kind := r.byte(); kind {
	case 0, 1:
		return ""
	case 2:
		r.varint()
		return ""
	case 3:
		return string(r.bytes(r.varint()))
	case 4:
		units := make([]uint16, 0, 16)
		for range r.count() {
			units = append(units, uint16(r.varint()))
		}
		return string(utf16.Decode(units))
	case 5:
		latin := r.bytes(r.varint())
		text := make([]rune, len(latin))
		for i, b := range latin {
			text[i] = rune(b)
		}
		return string(text)
	default:
		r.fail("string of an unknown kind")
		return ""
	}
}

// element is an element of the metadata. Its children follow it in the chunk.
type element struct {
	name       string
	attributes map[string]string
	children   int
}

func (r *reader) element(texts []string) (e element) {
	text := func() string {
		i := r.varint()
		if i >= uint64(len(texts)) {
			r.fail("unknown string")
			return ""
		}
		return texts[i]
	}
	e.name = text()
	for range r.count() {
		if !r.step() {
			return e
		}
		name, value := text(), text()
		if e.attributes == nil {
			e.attributes = map[string]string{}
		}
		e.attributes[name] = value
	}
	e.children = r.count()
	return e
}

func (c *chunk) readMetadata() error {
	c.at = c.metadata
	for range 5 { // size, class, start, duration, id
		c.varint()
	}
	var texts []string
	for range c.count() {
		if c.err != nil {
			return c.err
		}
		texts = append(texts, c.string())
	}
	c.elements(texts, nil, 0)
	return c.err
}

// elements reads an element and its children. of is the class to which fields are added; nil
// outside a class.
func (c *chunk) elements(texts []string, of *class, depth int) {
	if depth > jfrNestingMax {
		c.fail("elements are nested too deep")
	}
	if !c.step() {
		return
	}
	e := c.element(texts)
	if c.err != nil {
		return
	}
	switch e.name {
	case "class":
		id, err := strconv.ParseUint(e.attributes["id"], 10, 64)
		if err != nil {
			c.fail("class without id")
			return
		}
		of = &class{name: e.attributes["name"]}
		c.classes[id] = of
	case "field":
		id, err := strconv.ParseUint(e.attributes["class"], 10, 64)
		if err != nil || of == nil {
			c.fail("field without class")
			return
		}
		of.fields = append(of.fields, field{name: e.attributes["name"], class: id,
			constant: e.attributes["constantPool"] == "true", array: e.attributes["dimension"] == "1"})
		of = nil
	}
	for range e.children {
		if c.err != nil {
			return
		}
		c.elements(texts, of, depth+1)
	}
}

// readPools reads the events with constant pools, from the last to the first.
func (c *chunk) readPools() error {
	for at := c.pool; ; {
		c.at = at
		for range 4 { // size, class, start, duration
			c.varint()
		}
		delta := int64(c.varint())
		c.byte() // a mask of flags
		for range c.count() {
			id := c.varint()
			cl := c.classes[id]
			if cl == nil {
				c.fail("pool of an unknown class")
			}
			n := c.count()
			for range n {
				if !c.step() {
					return c.err
				}
				c.constant(cl, c.varint())
			}
		}
		if c.err != nil || delta == 0 {
			return c.err
		}
		if delta > 0 || at+int(delta) < jfrHeaderBytes || -delta > int64(at) {
			return corruptJFR("the pool at byte %d is followed by one at %d", at, int64(at)+delta)
		}
		at += int(delta)
	}
}

func (c *chunk) constant(cl *class, key uint64) {
	switch cl.name {
	case "jdk.types.StackTrace":
		c.stackTrace(cl, key)
	case "jdk.types.Method":
		var m method
		c.keys(cl, map[string]*uint64{"type": &m.class, "name": &m.name})
		c.methods[key] = m
	case "java.lang.Class":
		var name uint64
		c.keys(cl, map[string]*uint64{"name": &name})
		c.classNames[key] = name
	case "jdk.types.Symbol":
		c.symbols[key] = c.textOf(cl, "string")
	case "jdk.types.ThreadState":
		c.states[key] = c.textOf(cl, "name")
	default:
		c.skipFields(cl, 0)
	}
}

// keys reads the fields whose names are in into. Each is a key or a number, and is stored at
// the pointer. Other fields are skipped.
func (c *chunk) keys(cl *class, into map[string]*uint64) {
	for i := range cl.fields {
		if v := into[cl.fields[i].name]; v != nil {
			*v = c.keyOrNumber(&cl.fields[i])
		} else {
			c.skip(&cl.fields[i], 0)
		}
	}
}

// textOf reads the text of one field and skips the others.
func (c *chunk) textOf(cl *class, name string) (text string) {
	for i := range cl.fields {
		if fl := &cl.fields[i]; fl.name == name {
			text = c.text(fl)
		} else {
			c.skip(fl, 0)
		}
	}
	return text
}

func (c *chunk) stackTrace(cl *class, key uint64) {
	for i := range cl.fields {
		fl := &cl.fields[i]
		of := c.classes[fl.class]
		if fl.name != "frames" || !fl.array || fl.constant || of == nil {
			c.skip(fl, 0)
			continue
		}
		n := c.count()
		frames := make([]frameRef, 0, min(n, 64))
		for range n {
			if !c.step() {
				return
			}
			var m, line uint64
			c.keys(of, map[string]*uint64{"method": &m, "lineNumber": &line})
			frames = append(frames, frameRef{m, uint32(min(line, 1<<31-1))})
		}
		c.stacks[key] = frames
	}
}

// keyOrNumber reads the key of a constant, or a number of a primitive class.
func (c *chunk) keyOrNumber(fl *field) uint64 {
	cl := c.classes[fl.class]
	if fl.array || !fl.constant && (cl == nil || !isNumber(cl.name)) {
		c.fail("field " + fl.name + " is no number")
		return 0
	}
	if !fl.constant && (cl.name == "byte" || cl.name == "boolean") {
		return uint64(c.byte())
	}
	return c.varint()
}

func isNumber(class string) bool {
	switch class {
	case "int", "long", "short", "char", "byte", "boolean":
		return true
	}
	return false
}

func (c *chunk) text(fl *field) string {
	if cl := c.classes[fl.class]; fl.array || fl.constant || cl == nil || cl.name != "java.lang.String" {
		c.skip(fl, 0)
		return ""
	}
	return c.string()
}

func (c *chunk) skip(fl *field, depth int) {
	if !c.step() {
		return
	}
	n := 1
	if fl.array {
		n = c.count()
	}
	cl := c.classes[fl.class]
	for range n {
		if !c.step() {
			return
		}
		switch {
		case fl.constant:
			c.varint()
		case cl == nil:
			c.fail("field " + fl.name + " has an unknown class")
		default:
			c.skipValue(cl, depth)
		}
	}
}

func (c *chunk) skipValue(cl *class, depth int) {
	switch cl.name {
	case "int", "long", "short", "char":
		c.varint()
	case "byte", "boolean":
		c.byte()
	case "float":
		c.bytes(4)
	case "double":
		c.bytes(8)
	case "java.lang.String":
		c.string()
	default:
		c.skipFields(cl, depth+1)
	}
}

func (c *chunk) skipFields(cl *class, depth int) {
	if depth > jfrNestingMax {
		c.fail("classes are nested too deep")
		return
	}
	for i := range cl.fields {
		if c.err != nil {
			return
		}
		c.skip(&cl.fields[i], depth)
	}
}
