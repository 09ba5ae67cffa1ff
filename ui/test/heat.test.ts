import assert from "node:assert/strict";
import { test } from "node:test";
import { heatOf, shade } from "../src/lib/heat.ts";
import { EARLIER_LABEL, largestLast, matrixColumns, withEarlier, type MatrixSeries } from "../src/lib/matrix.ts";
import { plain, scanned } from "./scanned.ts";
import { rankItems } from "../src/lib/palette.ts";
import { before, candidates, narrow } from "../src/lib/reason.ts";
import { countRules, filterRules, historyOf, type Group } from "../src/lib/rules.ts";

const GRID = { start: 0, end: 2000, step: 1000 };

test("classic buckets become counts of their own", async () => {
  const s = (le: string, ...v: string[]): MatrixSeries => ({ metric: { le }, values: v.map((x, i) => [i, x]) });
  const heat = heatOf(await scanned([s("+Inf", "5", "5", "6"), s("1", "2", "3", "6"), s("2", "4", "2", "6")], GRID), GRID)!;
  assert.deepEqual(heat.rows.map((r) => [r.lower, r.upper, [...r.counts]]), [[0, 1, [2, 3, 6]], [1, 2, [2, 0, 0]], [2, Infinity, [1, 3, 0]]]);
  assert.equal(heat.max, 6);
  assert.equal(heatOf(await scanned([{ metric: { a: "1" }, values: [[0, "1"]] }], GRID), GRID), null);
});

test("native buckets of all series are added up, gaps stay gaps", async () => {
  const h = (t: number, ...buckets: [number, string, string, string][]): MatrixSeries => ({ metric: {}, histograms: [[t, { count: "0", sum: "0", buckets }]] });
  const heat = heatOf(await scanned([h(0, [0, "1", "2", "3"]), h(0, [0, "1", "2", "4"]), h(2, [0, "2", "4", "1"])], GRID), GRID)!;
  assert.deepEqual(heat.rows.map((r) => [r.lower, [...r.counts]]), [[1, [7, NaN, NaN]], [2, [NaN, NaN, 1]]]);
  assert.equal(shade(0, 5), 0);
  assert.ok(shade(1e-9, 5) >= 0.08);
});

test("many buckets are joined, and empty ones at the ends left out", async () => {
  const buckets = Array.from({ length: 500 }, (_, i): [number, string, string, string] => [0, String(i), String(i + 1), i < 100 ? "0" : "1"]);
  const heat = heatOf(await scanned([{ metric: {}, histograms: [[0, { count: "0", sum: "0", buckets }]] }], GRID), GRID)!;
  assert.ok(heat.rows.length <= 160 && heat.rows[0]!.upper >= 100);
  assert.equal(heat.rows.reduce((n, r) => n + (r.counts[0] || 0), 0), 400);
});

test("the largest series are drawn where not all are", async () => {
  const s = (v: string): MatrixSeries => ({ metric: { v }, values: [[0, v]] });
  assert.deepEqual(largestLast(await scanned([s("1"), s("NaN"), s("9"), s("5")], GRID), 2), [2, 3]);
  assert.deepEqual(largestLast(await scanned([s("5"), s("NaN"), s("5"), s("9"), s("5")], GRID), 3), [0, 2, 3]);
  assert.deepEqual(largestLast(await scanned([s("NaN"), s("NaN")], GRID), 1), [0]);
  assert.equal(largestLast(await scanned([s("1")], GRID), 2).length, 1);
});

test("earlier lines lie over those of now, and those that are gone are left out", async () => {
  const now = matrixColumns(await scanned([{ metric: { a: "1" }, values: [[0, "1"]] }], GRID), GRID, 10);
  const c = withEarlier(now, await scanned([{ metric: { a: "1" }, values: [[-3599, "7"]] }, { metric: { a: "2" }, values: [[-3600, "1"]] }], { ...GRID, start: -3_600_000, end: -3_598_000 }), 3_600_000);
  assert.deepEqual(plain(c.values), [[1, null, null], [null, 7, null]]);
  assert.deepEqual(c.earlierOf, [-1, 0]);
  assert.equal(c.labels[1]![EARLIER_LABEL], "1h");
});

test("labels that metrics and profiles share narrow the profiles", () => {
  const common = { __name__: "x", job: "shop", pod: "a", le: "1", handler: "/x" };
  assert.deepEqual(narrow(common, { service_name: ["shop"], pod: ["a", "b"], handler: ["/y"] }), { service: "shop", matchers: 'pod="a"' });
  assert.deepEqual(narrow(common, {}), { service: "", matchers: "" });
  assert.deepEqual(candidates(common, ["pod", "le", "region"]), ["pod"]);
  assert.deepEqual(before({ start: 100, end: 130 }), { start: 70, end: 100 });
});

test("rules are filtered by words, state and kind", () => {
  const groups: Group[] = [{ name: "g", file: "f.yml", interval: 60, rules: [
    { name: "High", query: "x > 1", health: "ok", type: "alerting", state: "firing", labels: { severity: "page" }, alerts: [] },
    { name: "r:x", query: "sum(x)", health: "err", type: "recording" },
  ] }];
  assert.deepEqual(countRules(groups), { all: 2, firing: 1, pending: 0, inactive: 0, bad: 1 });
  assert.deepEqual(filterRules(groups, "page x", "any")[0]!.rules.map((r) => r.name), ["High"]);
  assert.deepEqual(filterRules(groups, "", "bad", "alerting"), []);
  assert.equal(historyOf('a"b'), 'ALERTS{alertname="a\\"b"}');
});

test("the palette puts beginnings first and hides metrics until something is typed", () => {
  const item = (kind: string, text: string) => ({ kind, text, run: () => undefined });
  const items = [item("metric", "node_cpu"), item("metric", "cpu"), item("page", "Targets"), item("metric", "xcpu")];
  assert.deepEqual(rankItems(items, "cpu").map((i) => i.text), ["cpu", "node_cpu", "xcpu"]);
  assert.deepEqual(rankItems(items, "").map((i) => i.text), ["Targets"]);
});
