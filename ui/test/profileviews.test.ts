import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeFlame, decodeFunctions, focusMark, focusOf, inPackage, nameTest, otherShare, topPackages, type Flame } from "../src/lib/flame.ts";
import { changedExactly } from "../src/lib/flamediff.ts";
import { Places } from "../src/lib/places.ts";
import { cellOf, finer, formatCell, oneByOne, parseCell, placeOf, profileHeat, type WireHeat } from "../src/lib/profileheat.ts";
import { completing, splitMatchers } from "../src/lib/profiles.ts";
import { formatProfileState, NODES, parseProfileState, type ProfileState } from "../src/lib/profilestate.ts";
import { areaPath, servicesOf } from "../src/lib/services.ts";

const GRID = { start: 60_000, end: 180_000, step: 60_000 };

// Values from 0 to 190 in twenty intervals of ten; the server sends those that have anything.
const HEAT: WireHeat = { series: [{ slots: [
  { timestamp: "60000", yMin: [0, 20], counts: [3, 1] },
  { timestamp: "180000", yMin: [20, 190], counts: [2, 7] },
  { timestamp: "999000", yMin: [0], counts: [100] },
] }] };

test("a heat map of profiles has all intervals, and its times are the ends of steps", () => {
  const heat = profileHeat(HEAT, GRID)!;
  assert.equal(heat.rows.length, 20);
  assert.equal(heat.max, 7);
  assert.deepEqual(heat.rows.map((r) => [...r.counts]).filter((c) => c.some((v) => v > 0)), [[3, NaN, NaN], [1, NaN, 2], [NaN, NaN, 7]]);
  assert.deepEqual([heat.rows[2]!.lower, heat.rows[2]!.upper], [20, 30]);
  assert.deepEqual(cellOf(heat, GRID, 2, 19), { start: 120_000, end: 180_000, low: 190, high: 200 });
  assert.equal(cellOf(heat, GRID, 1, 0), null);
  assert.equal(cellOf(heat, GRID, 9, 0), null);
  assert.deepEqual(placeOf(heat, GRID, cellOf(heat, GRID, 0, 2)!), { column: 0, row: 2 });
  assert.equal(placeOf(heat, GRID, { start: 0, end: 1_000_000, low: 20, high: 30 }), null);
  assert.equal(profileHeat({}, GRID), null);
});

test("equal values are one row", () => {
  const heat = profileHeat({ series: [{ slots: [{ timestamp: "120000", yMin: [5], counts: [4] }] }] }, GRID)!;
  assert.deepEqual(heat.rows.map((r) => [r.lower, r.upper, [...r.counts]]), [[5, 5, [NaN, 4, NaN]]]);
  assert.deepEqual(placeOf(heat, GRID, cellOf(heat, GRID, 1, 0)!), { column: 1, row: 0 });
});

test("a cell lists its own profiles, the greatest first, each once", () => {
  const cell = { start: 60_000, end: 120_000, low: 10, high: 20 };
  assert.deepEqual(finer(cell), { start: "61000", end: "120000", step: 1 });
  assert.equal(finer({ ...cell, start: 119_990 }).step, 0.001);
  const x = (id: string, value: string, spanId?: string) => ({ timestamp: "70000", profileId: id, value, ...(spanId ? { spanId } : {}) });
  const list = oneByOne({ series: [{ slots: [{ exemplars: [x("a", "10"), x("b", "9"), x("c", "21"), x("a", "10"), { timestamp: "1", value: "15" }] }, { exemplars: [x("d", "20"), x("a", "12", "s1")] }] }] }, cell);
  assert.deepEqual(list.map((o) => [o.id, o.span, o.value]), [["d", "", 20], ["a", "s1", 12], ["a", "", 10]]);
});

test("services are ordered by what they spent; levels have a mean", () => {
  const s = (name: string, ...values: number[]) => ({ labels: name === "" ? [] : [{ name: "service_name", value: name }], points: values.map((value, i) => ({ timestamp: String(60_000 * (i + 1)), value })) });
  const all = servicesOf([s("a", 1, 2), s("b", 4), s("")], GRID, false);
  assert.deepEqual(all.map((x) => [x.name, x.total, [...x.values]]), [["b", 4, [4, NaN, NaN]], ["a", 3, [1, 2, NaN]], ["", 0, [NaN, NaN, NaN]]]);
  assert.deepEqual(servicesOf([s("a", 1, 2)], GRID, true).map((x) => x.total), [1.5]);
});

test("a course keeps its gaps", () => {
  assert.equal(areaPath(Float64Array.of(1, 2, NaN, 4, NaN), 4, 40, 20), "M0 20L0 15L10 10L10 20ZM25 20V0H35L35 20Z");
  assert.equal(areaPath(Float64Array.of(0, 0), 0, 40, 20), "");
});

const flame = (): Flame => decodeFlame({
  names: ["total", "a/b.Run", "a/b.work", "other", "c.x"], total: "10",
  levels: [[0, 10, 0, 0], [0, 6, 1, 1, 0, 4, 4, 4], [0, 3, 3, 2, 0, 2, 2, 3]].map((values) => ({ values: values.map(String) })),
});

test("a focus survives the address, and is nothing in a graph without it", () => {
  const f = flame();
  for (const level of f.levels) for (const n of level) assert.equal(focusOf(f, focusMark(f, n)), n.level === 0 ? null : n);
  assert.equal(focusOf(f, "zzzz"), null);
  assert.equal(focusOf(decodeFlame(undefined), "zzzz"), null);
  assert.equal(otherShare(f), 0.2);
  assert.equal(otherShare(f, f.levels[1]![0]!), 2 / 6);
  assert.equal(otherShare(f, f.levels[1]![1]!), 0);
});

test("packages are named by their colours' boxes, and found by their whole names", () => {
  const { costs, count, total } = decodeFunctions({ functions: [{ name: "a/b.Run", self: "1", total: "6" }, { name: "a/b.work", self: "3" }, { name: "c.x", self: "4" }, { name: "other", self: "2" }], count: "9", total: "10" });
  assert.deepEqual([count, total], [9, 10]);
  assert.deepEqual(topPackages(costs, 5), [{ name: "a/b", self: 4 }, { name: "c", self: 4 }]);
  const found = nameTest(inPackage("a/b"))!;
  assert.deepEqual(["a/b.Run", "a/bc.Run", "x/a/b.Run", "a/b"].map(found), [true, false, false, true]);
});

test("changes come from whole stacks where the server has added them up", () => {
  const of = (total: number, ...costs: [string, number][]) => ({ total, count: costs.length, costs: costs.map(([name, self]) => ({ name, self, total: self })) });
  assert.deepEqual(changedExactly(of(10, ["a", 5], ["b", 1]), of(100, ["a", 10], ["c", 40])).map((r) => [r.name, r.left, r.right, Math.round(r.delta * 100)]),
    [["a", 5, 10, -40], ["c", 0, 40, 40], ["b", 1, 0, -10]]);
});

test("the nearest of many lines is found, with and without their places", () => {
  const columns = [Float64Array.of(1, 5, NaN), Float64Array.of(2, 9, NaN), Float64Array.of(3, NaN, NaN)];
  for (const cellsMax of [100, 0]) {
    const p = new Places([4, 7, 9], 3, cellsMax);
    columns.forEach((c, k) => p.add(k, c, (v) => 100 - 10 * v));
    assert.deepEqual([p.nearest(0, 89), p.nearest(0, 84), p.nearest(0, 0), p.nearest(0, 85), p.nearest(1, 0), p.nearest(2, 50), p.nearest(8, 1)], [4, 7, 9, 4, 7, -1, -1]);
  }
});

test("matchers are completed one after the other", () => {
  assert.deepEqual(completing(""), { head: "", name: "", op: "" });
  assert.deepEqual(completing("{po"), { head: "{", name: "", op: "" });
  assert.deepEqual(completing('pod="a,b", na'), { head: 'pod="a,b", ', name: "", op: "" });
  assert.deepEqual(completing('pod="a\\",b", name=~"x'), { head: 'pod="a\\",b", ', name: "name", op: "=~" });
  assert.deepEqual(splitMatchers('pod="a,b", name="c"'), ['pod="a,b"', 'name="c"']);
});

test("any state of the profiles page survives the address", () => {
  let seed = 11;
  const next = (n: number) => { seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0; return Math.floor((seed / 2 ** 32) * n); };
  const one = <T>(...list: T[]): T => list[next(list.length)]!;
  const text = () => one("", "a", 'pod="a&b", x=~"%2F+#"', "é\n漢 \u{1f525}", "<script>", " ", "base=1-2", "main.(*T).f[...]", "/re(gex)/");
  for (let i = 0; i < 2000; i++) {
    const over = one("", "services", "lines", "heat", "spans") as ProfileState["over"];
    const dots = one(null, true, false);
    const profile = one(null, { id: "p", timeMS: 17 });
    const s: ProfileState = {
      type: text(), service: text(), matchers: text(), groupBy: text(), rangeMS: one(1000, 3_600_000, 1), endMS: one(null, 1_700_000_000_123), stepMS: one(null, 15_000), refreshMS: one(0, 5000),
      profile, span: profile ? one("", "00000000000000ff") : "", over, dots, cell: over === "heat" || over === "spans" ? one(null, { start: 1, end: 2, low: -1.5e-7, high: 3e21 }, { start: 1_700_000_000_000, end: 1_700_000_015_000, low: 12345678.35, high: 2e9 }) : null,
      services: text(), base: one(null, { start: 1, end: 2 }), view: one("flame", "table", "both"), find: text(), sandwich: text(), upward: one(true, false), collapse: one(true, false),
      focus: one("", "a", "zz9.0.abcd"), nodes: one(0, ...NODES.slice(1)), ends: one(true, false), bySelf: one(true, false), tenant: text(),
      lines: { hidden: one([], ["a", "b1"]), only: one([], ["z9"]), sort: one("", "max-", "name+"), find: text(), all: one(true, false) }, order: one("", "name", "total"),
    };
    assert.deepEqual(parseProfileState(formatProfileState(s)), s);
  }
  const odd = parseProfileState("?over=pie&cell=1~2~3~4&focus=<b>&nodes=7&span=x");
  assert.deepEqual([odd.over, odd.cell, odd.focus, odd.nodes, odd.span], ["", null, "", 0, ""]);
  for (const bad of ["", "1~2", "2~1~0~1", "1~2~5~4", "1~2~x~4"]) assert.equal(parseCell(bad), null);
  assert.deepEqual(parseCell(formatCell({ start: 1, end: 2, low: 1e-9, high: 1e30 })), { start: 1, end: 2, low: 1e-9, high: 1e30 });
});
