// Package jfr decodes the events of a Java flight recording that are profiles: executions,
// allocations, locks.
//
// A recording is a sequence of chunks. Each chunk describes its own classes (metadata) and has
// constant pools. Events refer to entries of these pools. Decode reads the pools of stack traces,
// methods, classes, symbols and thread states, and passes every event of a known Kind to a
// function. It skips all other data, whose layout it knows from the metadata.
//
//	chunk      "FLR\0" | version u32 | size, constant pool, metadata i64 (offsets) |
//	           start ns, duration ns, start ticks, ticks per second i64 | features u32
//	           events: varint size | varint class | fields
//	metadata   varint* | strings | element: name, attributes, children
//	pool       varint* | varint distance to the pool before (negative; 0: none) | flags u8
//	           pools: class, n * (key, fields)
//
// Invalid input returns ErrCorrupt. It never panics; memory and time are proportional to the
// input. The package has no compression and no I/O, and does not encode profiles.
package jfr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ErrCorrupt is returned for an invalid recording.
var ErrCorrupt = errors.New("corrupt flight recording")

// Frame is one call of a stack.
type Frame struct {
	Method string // class.method
	Line   uint32 // 0: unknown
}

// Kind is what an event measures.
type Kind int

// Kinds of events.
const (
	Execution         Kind = iota // one sample of a thread; Amount is 0
	WallClock                     // Count samples of a thread; Amount is 0
	AllocationInTLAB              // Amount: bytes of a new thread-local allocation buffer
	AllocationOutside             // Amount: bytes allocated outside such a buffer
	AllocationSample              // Amount: allocated bytes that the sample stands for
	LiveObject                    // Amount: bytes of an object that is still in use
	MonitorEnter                  // Amount: nanoseconds of waiting for the monitor
	ThreadPark                    // Amount: nanoseconds for which the thread was parked
)

// Event is one event. It is valid until the callback of Decode returns.
type Event struct {
	Kind    Kind
	State   string  // of the thread, for Execution
	Stack   []Frame // leaf first
	StackID uint64  // equal for equal stacks of one chunk
	Chunk   int     // number of the chunk in the recording, from 0
	Count   int64   // samples that the event stands for
	Amount  int64   // as explained for each Kind
	Context uint64  // key of the labels that the agent sends with a recording; 0: none
}

// Recording has the properties of a whole recording.
type Recording struct {
	StartNS, DurationNS int64  // of all chunks together
	Event               string // the agent's setting `event`, for example cpu or wall; "": unknown
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

const (
	magic       = 0x464c5200
	headerBytes = 68
	chunksMax   = 1000
	nestingMax  = 16
)

// kinds are the classes of events.
var kinds = map[string]Kind{
	"jdk.ExecutionSample": Execution, "profiler.WallClockSample": WallClock,
	"jdk.ObjectAllocationInNewTLAB":   AllocationInTLAB,
	"jdk.ObjectAllocationOutsideTLAB": AllocationOutside, "jdk.ObjectAllocationSample": AllocationSample,
	"profiler.LiveObject":  LiveObject,
	"jdk.JavaMonitorEnter": MonitorEnter, "jdk.ThreadPark": ThreadPark,
}

// Decode calls f with every event of a known Kind. If f returns an error, Decode returns that
// error.
func Decode(b []byte, f func(*Event) error) (r Recording, err error) {
	if len(b) == 0 {
		return r, corrupt("it is empty")
	}
	endNS := int64(0) // of the chunk that ends last
	for n := 0; len(b) > 0; n++ {
		if n >= chunksMax {
			return r, corrupt("it has more than %d chunks", chunksMax)
		}
		c, err := openChunk(b)
		if err != nil {
			return r, fmt.Errorf("chunk %d: %w", n, err)
		}
		if r.StartNS == 0 || c.startNS < r.StartNS {
			r.StartNS = c.startNS
		}
		endNS = max(endNS, c.startNS+c.durationNS)
		r.DurationNS = endNS - r.StartNS
		c.number = n
		if err := c.events(&r, f); err != nil {
			return r, fmt.Errorf("chunk %d: %w", n, err)
		}
		b = b[len(c.b):]
	}
	return r, nil
}

// chunk decodes one chunk.
type chunk struct {
	reader
	number              int
	startNS, durationNS int64
	ticksPerSecond      uint64
	metadata, pool      int                // offsets in the chunk
	classes             map[uint64]*class  // by id
	stacks              map[uint64][]frame // by key in the constant pool, like methods, classNames, symbols and states
	methods             map[uint64]method
	classNames          map[uint64]uint64 // key of the class' name in symbols
	symbols             map[uint64]string
	states              map[uint64]string
	methodNames         map[uint64]string // cached results of methodName
	stack               []Frame           // memory of framesOf
}

type frame struct {
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
	if len(b) < headerBytes || be.Uint32(b) != magic {
		return nil, corrupt("no header")
	}
	if major := be.Uint16(b[4:]); major != 2 {
		return nil, corrupt("version %d", major)
	}
	if be.Uint32(b[64:])&1 == 0 {
		return nil, corrupt("numbers are not compressed")
	}
	size, pool, metadata := be.Uint64(b[8:]), be.Uint64(b[16:]), be.Uint64(b[24:])
	if size < headerBytes || size > uint64(len(b)) || pool < headerBytes || pool >= size || metadata < headerBytes ||
		metadata >= size {
		return nil, corrupt("%d bytes with pools at %d and metadata at %d, in %d bytes", size, pool, metadata, len(b))
	}
	c := &chunk{
		reader:  reader{b: b[:size], left: 1<<16 + 64*int(size)},
		startNS: int64(be.Uint64(b[32:])), durationNS: int64(be.Uint64(b[40:])), ticksPerSecond: max(1, be.Uint64(b[56:])),
		metadata: int(metadata), pool: int(pool), classes: map[uint64]*class{}, stacks: map[uint64][]frame{},
		methods:    map[uint64]method{},
		classNames: map[uint64]uint64{}, symbols: map[uint64]string{}, states: map[uint64]string{},
		methodNames: map[uint64]string{},
	}
	if c.startNS < 0 || c.durationNS < 0 || c.startNS+c.durationNS < 0 {
		return nil, corrupt("start %d, duration %d", c.startNS, c.durationNS)
	}
	if err := c.readMetadata(); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if err := c.readPools(); err != nil {
		return nil, fmt.Errorf("constant pool: %w", err)
	}
	return c, nil
}

func (c *chunk) events(r *Recording, f func(*Event) error) error {
	for at := headerBytes; at < len(c.b); {
		c.at, c.err = at, nil
		size, id := c.varint(), c.varint()
		if c.err != nil || size == 0 || size > uint64(len(c.b)-at) {
			return corrupt("event at byte %d has %d bytes", at, size)
		}
		end := at + int(size)
		if cl := c.classes[id]; cl != nil {
			kind, known := kinds[cl.name]
			switch {
			case known:
				if err := c.event(kind, cl, end, f); err != nil {
					return fmt.Errorf("event at byte %d: %w", at, err)
				}
			case cl.name == "jdk.ActiveSetting":
				c.setting(cl, end, r)
			}
		}
		at = end
	}
	return nil
}

func (c *chunk) event(kind Kind, cl *class, end int, f func(*Event) error) error {
	e := Event{Kind: kind, Count: 1, Chunk: c.number}
	for i := range cl.fields {
		fl := &cl.fields[i]
		switch fl.name {
		case "stackTrace":
			e.StackID = c.keyOrNumber(fl)
		case "state":
			e.State = c.states[c.keyOrNumber(fl)]
		case "contextId":
			e.Context = c.keyOrNumber(fl)
		case "samples":
			e.Count = int64(c.keyOrNumber(fl))
		case "tlabSize":
			if n := c.keyOrNumber(fl); kind == AllocationInTLAB {
				e.Amount = int64(n)
			}
		case "allocationSize", "weight":
			if n := c.keyOrNumber(fl); kind != AllocationInTLAB {
				e.Amount = int64(n)
			}
		case "duration":
			e.Amount = c.nanoseconds(c.keyOrNumber(fl))
		default:
			c.skip(fl, 0)
		}
	}
	if c.err != nil || c.at > end {
		return corrupt("%s is cut short", cl.name)
	}
	if e.Count < 0 || e.Amount < 0 {
		return corrupt("%s has a negative value", cl.name)
	}
	e.Stack = c.framesOf(e.StackID)
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

func (c *chunk) setting(cl *class, end int, r *Recording) {
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
		r.Event = strings.Clone(value)
	}
}

// framesOf returns the frames of a stack, valid until the next call.
func (c *chunk) framesOf(id uint64) []Frame {
	c.stack = c.stack[:0]
	for _, f := range c.stacks[id] {
		c.stack = append(c.stack, Frame{Method: c.methodName(f.method), Line: f.line})
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
	if name == "" {
		name = "unknown"
	}
	c.methodNames[id] = name
	return name
}
