package ingest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// A flight recording of Java is a sequence of chunks. Each chunk describes its own classes (metadata) and has
// constant pools, to whose entries events refer. decodeJFR reads the pools of stack traces, methods, classes, symbols
// and thread states, and passes every event of jfrKinds to a function. It skips all other data, whose layout it knows
// from the metadata.
//
//	chunk      "FLR\0" | version u32 | size, constant pool, metadata i64 (offsets) |
//	           start ns, duration ns, start ticks, ticks per second i64 | features u32
//	           events: varint size | varint class | fields
//	metadata   varint* | strings | element: name, attributes, children
//	pool       varint* | varint distance to the pool before (negative; 0: none) | flags u8
//	           pools: class, n * (key, fields)
//
// Memory and time are proportional to the input.

// errJFR is returned for an invalid recording.
var errJFR = errors.New("corrupt flight recording")

// jfrFrame is one call of a stack.
type jfrFrame struct {
	method string // class.method
	line   uint32 // 0: unknown
}

// jfrEvent is one event. It is valid until the callback of decodeJFR returns.
type jfrEvent struct {
	kind    *measured
	state   string     // of the thread, for an execution
	stack   []jfrFrame // leaf first
	stackID uint64     // equal for equal stacks of one chunk
	chunk   int        // number of the chunk in the recording, from 0
	count   int64      // samples that the event stands for
	amount  int64      // bytes that were allocated or are still in use, or nanoseconds of waiting
	context uint64     // key of the labels that the agent sends with a recording; 0: none
}

func corruptJFR(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errJFR, fmt.Sprintf(format, args...))
}

const (
	jfrMagic       = 0x464c5200
	jfrHeaderBytes = 68
	jfrChunksMax   = 1000
	jfrNestingMax  = 16
)

// jfrKinds are the classes of events, with the profiles that are built from them.
var jfrKinds = map[string]*measured{
	"jdk.ExecutionSample": javaCPU, "profiler.WallClockSample": javaWall, "jdk.ObjectAllocationInNewTLAB": javaInTLAB,
	"jdk.ObjectAllocationOutsideTLAB": javaOutside, "jdk.ObjectAllocationSample": javaAllocation,
	"profiler.LiveObject": javaLive, "jdk.JavaMonitorEnter": javaLock, "jdk.ThreadPark": javaPark,
}

// decodeJFR calls f with every event of jfrKinds; f may be nil. If f returns an error, decodeJFR returns that error.
// setting is the agent's setting `event`, for example cpu or wall; "": unknown.
func decodeJFR(b []byte, f func(*jfrEvent) error) (setting string, err error) {
	if len(b) == 0 {
		return "", corruptJFR("it is empty")
	}
	for n := 0; len(b) > 0; n++ {
		if n >= jfrChunksMax {
			return "", corruptJFR("it has more than %d chunks", jfrChunksMax)
		}
		c, err := openChunk(b)
		if err == nil {
			c.number = n
			err = c.events(&setting, f)
		}
		if err != nil {
			return "", fmt.Errorf("chunk %d: %w", n, err)
		}
		b = b[len(c.b):]
	}
	return setting, nil
}

// chunk decodes one chunk.
type chunk struct {
	reader
	number         int
	ticksPerSecond uint64
	metadata, pool int                   // offsets in the chunk
	classes        map[uint64]*class     // by id
	stacks         map[uint64][]frameRef // by key in the constant pool, like methods, classNames, symbols and states
	methods        map[uint64]method
	classNames     map[uint64]uint64 // key of the class' name in symbols
	symbols        map[uint64]string
	states         map[uint64]string
	methodNames    map[uint64]string // cached results of methodName
	stack          []jfrFrame        // memory of framesOf
}

type frameRef struct {
	method uint64
	line   uint32
}

type method struct{ class, name uint64 }

type class struct {
	name   string
	fields []field
}

type field struct {
	name     string
	class    uint64
	constant bool // its value is a key in the constant pool of its class
	array    bool
}

func openChunk(b []byte) (*chunk, error) {
	be := binary.BigEndian
	if len(b) < jfrHeaderBytes || be.Uint32(b) != jfrMagic {
		return nil, corruptJFR("no header")
	}
	if major := be.Uint16(b[4:]); major != 2 {
		return nil, corruptJFR("version %d", major)
	}
	if be.Uint32(b[64:])&1 == 0 {
		return nil, corruptJFR("numbers are not compressed")
	}
	size, pool, metadata := be.Uint64(b[8:]), be.Uint64(b[16:]), be.Uint64(b[24:])
	if size < jfrHeaderBytes || size > uint64(len(b)) || pool < jfrHeaderBytes || pool >= size || metadata < jfrHeaderBytes ||
		metadata >= size {
		return nil, corruptJFR("%d bytes with pools at %d and metadata at %d, in %d bytes", size, pool, metadata, len(b))
	}
	startNS, durationNS := int64(be.Uint64(b[32:])), int64(be.Uint64(b[40:]))
	if startNS < 0 || durationNS < 0 || startNS+durationNS < 0 {
		return nil, corruptJFR("start %d, duration %d", startNS, durationNS)
	}
	c := &chunk{
		reader: reader{b: b[:size], left: 1<<16 + 64*int(size)}, ticksPerSecond: max(1, be.Uint64(b[56:])),
		metadata: int(metadata), pool: int(pool), classes: map[uint64]*class{}, stacks: map[uint64][]frameRef{},
		methods:    map[uint64]method{},
		classNames: map[uint64]uint64{}, symbols: map[uint64]string{}, states: map[uint64]string{},
		methodNames: map[uint64]string{},
	}
	if err := c.readMetadata(); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if err := c.readPools(); err != nil {
		return nil, fmt.Errorf("constant pool: %w", err)
	}
	return c, nil
}

func (c *chunk) events(setting *string, f func(*jfrEvent) error) error {
	for at := jfrHeaderBytes; at < len(c.b); {
		c.at, c.err = at, nil
		size, id := c.varint(), c.varint()
		if c.err != nil || size == 0 || size > uint64(len(c.b)-at) {
			return corruptJFR("event at byte %d has %d bytes", at, size)
		}
		end := at + int(size)
		if cl := c.classes[id]; cl != nil {
			kind := jfrKinds[cl.name]
			switch {
			case kind != nil && f != nil:
				if err := c.event(kind, cl, end, f); err != nil {
					return fmt.Errorf("event at byte %d: %w", at, err)
				}
			case cl.name == "jdk.ActiveSetting":
				c.setting(cl, end, setting)
			}
		}
		at = end
	}
	return nil
}

func (c *chunk) event(kind *measured, cl *class, end int, f func(*jfrEvent) error) error {
	e := jfrEvent{kind: kind, count: 1, chunk: c.number}
	for i := range cl.fields {
		fl := &cl.fields[i]
		switch fl.name {
		case "stackTrace":
			e.stackID = c.keyOrNumber(fl)
		case "state":
			e.state = c.states[c.keyOrNumber(fl)]
		case "contextId":
			e.context = c.keyOrNumber(fl)
		case "samples":
			e.count = int64(c.keyOrNumber(fl))
		case "tlabSize":
			if n := c.keyOrNumber(fl); kind == javaInTLAB {
				e.amount = int64(n)
			}
		case "allocationSize", "weight":
			if n := c.keyOrNumber(fl); kind != javaInTLAB {
				e.amount = int64(n)
			}
		case "duration":
			e.amount = c.nanoseconds(c.keyOrNumber(fl))
		default:
			c.skip(fl, 0)
		}
	}
	if c.err != nil || c.at > end {
		return corruptJFR("%s is cut short", cl.name)
	}
	if e.count < 0 || e.amount < 0 {
		return corruptJFR("%s has a negative value", cl.name)
	}
	e.stack = c.framesOf(e.stackID)
	return f(&e)
}

// nanoseconds converts ticks. For a duration of more than a day it returns one day.
func (c *chunk) nanoseconds(ticks uint64) int64 {
	const day = 24 * 3600
	if ticks/c.ticksPerSecond >= day {
		return day * 1e9
	}
	return int64(ticks/c.ticksPerSecond*1e9 + uint64(float64(ticks%c.ticksPerSecond)*1e9/float64(c.ticksPerSecond)))
}

func (c *chunk) setting(cl *class, end int, setting *string) {
	var name, value string
	for i := range cl.fields {
		switch fl := &cl.fields[i]; fl.name {
		case "name":
			name = c.text(fl)
		case "value":
			value = c.text(fl)
		default:
			c.skip(fl, 0)
		}
	}
	if c.err == nil && c.at <= end && name == "event" {
		*setting = strings.Clone(value)
	}
}

// framesOf returns the frames of a stack, valid until the next call.
func (c *chunk) framesOf(id uint64) []jfrFrame {
	c.stack = c.stack[:0]
	for _, f := range c.stacks[id] {
		c.stack = append(c.stack, jfrFrame{c.methodName(f.method), f.line})
	}
	return c.stack
}

// lambda begins the part of a class' name that differs from run to run.
const lambda = "$$Lambda"

func (c *chunk) methodName(id uint64) string {
	if name, ok := c.methodNames[id]; ok {
		return name
	}
	m := c.methods[id]
	name, class := c.symbols[m.name], c.symbols[c.classNames[m.class]]
	if at := strings.Index(class, lambda); at >= 0 {
		class = class[:at+len(lambda)]
	}
	if class != "" {
		name = class + "." + name
	}
	name = cmp.Or(name, "unknown")
	c.methodNames[id] = name
	return name
}
