import assert from "node:assert/strict";
import { test } from "node:test";
import { classicHistograms, placeBars, viewHistogram } from "../src/lib/histogram.ts";

const round = (v: number): number => Math.round(v * 1000) / 1000;

test("on an exponential axis buckets of one factor have one width, and heights are counts", () => {
  const { bars } = viewHistogram({ count: "7", sum: "1", buckets: [[0, "1", "2", "1"], [0, "2", "4", "4"], [0, "4", "8", "2"]] });
  const { placed, ticks } = placeBars(bars, false);
  assert.deepEqual(placed.map((p) => [round(p.x0), round(p.x1), p.height]), [[0, 0.333, 0.25], [0.333, 0.667, 1], [0.667, 1, 0.5]]);
  assert.deepEqual(ticks.map((t) => t.value), [1, 2, 4, 8]);
});

test("on a linear axis areas are counts", () => {
  const { bars } = viewHistogram({ count: "7", sum: "1", buckets: [[0, "1", "2", "1"], [0, "2", "4", "4"], [0, "4", "8", "2"]] });
  const { placed } = placeBars(bars, true);
  assert.deepEqual(placed.map((p) => [round(p.x0), round(p.x1), p.height]), [[0, 0.143, 0.5], [0.143, 0.429, 1], [0.429, 1, 0.25]]);
});

test("negative, zero and unbounded buckets have places from left to right", () => {
  const { bars } = viewHistogram({ count: "4", sum: "1", buckets: [[1, "-4", "-2", "1"], [3, "-0.5", "0.5", "1"], [0, "2", "4", "1"], [0, "4", "+Inf", "1"]] });
  for (const linear of [true, false]) {
    const { placed, ticks } = placeBars(bars, linear);
    const edges = placed.flatMap((p) => [p.x0, p.x1]);
    assert.deepEqual([...edges].sort((a, b) => a - b), edges);
    assert.deepEqual([edges[0], edges[edges.length - 1]], [0, 1]);
    assert.ok(placed.every((p) => p.x1 > p.x0 && p.height > 0 && p.height <= 1), JSON.stringify(placed));
    assert.ok(ticks.every((t, i) => i === 0 || t.at - ticks[i - 1]!.at > 0.1));
  }
  assert.deepEqual(placeBars([], false).placed, []);
  const one = viewHistogram({ count: "1", sum: "0", buckets: [[3, "0", "0", "1"]] });
  assert.ok(placeBars(one.bars, true).placed.every((p) => Number.isFinite(p.x0) && Number.isFinite(p.height)));
});

test("classic histograms are series that differ in le only, and their buckets are differences", () => {
  const s = (le: string | null, value: string, path = "/a") => ({ metric: { __name__: "x_bucket", path, ...(le === null ? {} : { le }) }, value: [1, value] as [number, string] });
  const all = classicHistograms([s("+Inf", "10"), s("0.5", "4"), s("1", "3"), s("1", "1", "/b"), s(null, "7"), s("x", "7")]);
  assert.deepEqual(all.map((h) => [h.labels, h.view.count, h.view.bars.map((b) => [b.text, b.count])]),
    [[{ __name__: "x_bucket", path: "/a" }, 10, [["(0, 0.5]", 4], ["(0.5, 1]", 0], ["(1, +Inf]", 7]]]]);
  assert.deepEqual(classicHistograms([s("-1", "1"), s("+Inf", "2")])[0]!.view.bars.map((b) => [b.text, b.count]), [["(-Inf, -1]", 1], ["(-1, +Inf]", 1]]);
});
