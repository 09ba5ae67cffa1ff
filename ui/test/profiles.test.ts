import assert from "node:assert/strict";
import { test } from "node:test";
import { defaultType, parseType, profileColumns, selectorOf, splitMatchers, typeName, withMatcher } from "../src/lib/profiles.ts";
import { figuresOf } from "../src/lib/profilefigures.ts";
import { plain } from "./scanned.ts";
import { formatProfileState, parseProfileState } from "../src/lib/profilestate.ts";
import { encodeMergeProfile } from "../src/lib/proto.ts";
import { formatShare, formatUnit, formatUnitTicks } from "../src/lib/units.ts";

const CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

test("points find their steps, and exemplars keep their own times", () => {
  const { columns, dots } = profileColumns([{
    labels: [{ name: "pod", value: "a" }],
    points: [
      { timestamp: "1000", value: 5 },
      { timestamp: "3000", exemplars: [{ timestamp: "2400", profileId: "x", value: "3", labels: [{ name: "node", value: "n" }] }, { timestamp: "1", value: "9" }] },
    ],
  }], { start: 1000, end: 4000, step: 1000 }, 10, { factor: 2, text: (v) => `${v}!`, alone: { service: "all" } });
  assert.deepEqual(columns.times, [1, 2, 3, 4]);
  assert.deepEqual(plain(columns.values), [[10, null, 0, null]]);
  assert.deepEqual(columns.labels, [{ pod: "a" }]);
  assert.deepEqual(dots, [{ series: 0, timeMS: 2400, value: 3, y: 0, text: "3!", id: "x", labels: { node: "n" } }]);
});

test("types have names, and CPU comes first", () => {
  assert.equal(typeName(parseType(CPU)), "CPU time");
  assert.equal(typeName(parseType("wall:wall_time:ns:cpu:ns")), "wall wall time");
  assert.equal(defaultType(["memory:inuse_space:bytes:space:bytes", CPU].map(parseType)), CPU);
  assert.equal(defaultType([]), "");
});

test("selectors join a service and further matchers", () => {
  assert.equal(selectorOf("", ""), "{}");
  assert.equal(selectorOf('a"b', ' {pod=~"x.*"} '), '{service_name="a\\"b", pod=~"x.*"}');
});

test("the address keeps everything and leaves defaults out", () => {
  assert.equal(formatProfileState(parseProfileState("")), "");
  const text = formatProfileState({ ...parseProfileState(""), type: CPU, service: "ferula", groupBy: "pod", rangeMS: 900_000, profile: { id: "ab", timeMS: 17 } });
  assert.deepEqual(parseProfileState(text), { type: CPU, service: "ferula", matchers: "", groupBy: "pod", rangeMS: 900_000, endMS: null, stepMS: null, refreshMS: 0, profile: { id: "ab", timeMS: 17 },
    span: "", over: "", dots: null, cell: null, services: "",
    base: null, view: "flame", find: "", sandwich: "", upward: false, collapse: false, focus: "", nodes: 0, ends: false, bySelf: false, tenant: "",
    lines: { hidden: [], only: [], sort: "", find: "", all: false }, order: "" });
  assert.equal(parseProfileState("?id=x").profile, null);
});

test("units are written as people read them", () => {
  assert.equal(formatUnit(1.25e9, "nanoseconds"), "1.25 s");
  assert.equal(formatUnit(0, "nanoseconds"), "0 ns");
  assert.equal(formatUnit(3 * 2 ** 20, "bytes"), "3 MiB");
  assert.equal(formatUnit(1234, "count"), "1.234k");
  assert.deepEqual(formatUnitTicks([0, 5e8, 1e9], "nanoseconds"), ["0", "0.5 s", "1.0 s"]);
  assert.equal(formatShare(1, 100_000), "< 0.01 %");
  assert.equal(formatShare(342, 1000), "34.2 %");
  assert.equal(formatShare(0, 0), "–");
});

test("a request for a pprof file is encoded in protobuf", () => {
  const bytes = encodeMergeProfile({ profileTypeID: "t", labelSelector: "{}", start: "300", end: "1", profileIdSelector: ["é"] });
  assert.deepEqual([...bytes], [0x0a, 1, 0x74, 0x12, 2, 0x7b, 0x7d, 0x18, 0xac, 0x02, 0x20, 1, 0x3a, 2, 0xc3, 0xa9]);
});

test("a level is averaged, and an amount is divided by its time", () => {
  const cpu = figuresOf(parseType(CPU), 15_000);
  assert.equal(cpu.average, false);
  assert.equal(3e10 * cpu.factor, 2);
  assert.equal(cpu.long(2), "2 cores");
  const heap = figuresOf(parseType("memory:inuse_space:bytes:space:bytes"), 300_000);
  assert.deepEqual([heap.average, heap.factor, heap.long(2048)], [true, 1, "2 KiB"]);
  const alloc = figuresOf(parseType("memory:alloc_space:bytes:space:bytes"), 10_000);
  assert.equal(alloc.long(20_480 * alloc.factor), "2 KiB/s");
  assert.equal(figuresOf(parseType("goroutine:goroutine:count:goroutine:count"), 1000).average, true);
});

test("matchers are added by clicks, and values with commas and quotes survive", () => {
  const one = withMatcher("", "pod", "=", 'a,"b');
  assert.equal(one, 'pod="a,\\"b"');
  assert.deepEqual(splitMatchers(`{${one}, x!="1"}`), [one, 'x!="1"']);
  assert.equal(withMatcher(one, "pod", "=", "c"), 'pod="c"');
  assert.equal(withMatcher('pod="c"', "pod", "!=", "d"), 'pod="c", pod!="d"');
});

