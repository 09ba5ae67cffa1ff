import assert from "node:assert/strict";
import { test } from "node:test";
import { viewHistogram } from "../src/lib/histogram.ts";
import { columnsOf, loneSamples, matrixColumns, stackColumns, summary } from "../src/lib/matrix.ts";
import { plain, scanned } from "./scanned.ts";

const GRID = { start: 10_000, end: 14_000, step: 1000 };

test("steps without a sample stay gaps", async () => {
  const c = matrixColumns(await scanned([{ metric: { a: "1" }, values: [[10, "1"], [13, "4.5"]] }], GRID), GRID, 10);
  assert.deepEqual(c.times, [10, 11, 12, 13, 14]);
  assert.deepEqual(plain(c.values), [[1, null, null, 4.5, null]]);
  assert.deepEqual(c.labels, [{ a: "1" }]);
});

test("fractional steps find their places", async () => {
  const c = matrixColumns(await scanned([{ metric: {}, values: [[0.1, "1"], [0.3, "3"]] }], { start: 100, end: 300, step: 100 }), { start: 100, end: 300, step: 100 }, 10);
  assert.deepEqual(plain(c.values), [[1, null, 3]]);
});

test("NaN and infinities are gaps and are counted", async () => {
  const c = matrixColumns(await scanned([{ metric: {}, values: [[10, "NaN"], [11, "+Inf"], [12, "-Inf"], [13, "0"]] }], GRID), GRID, 10);
  assert.deepEqual(plain(c.values), [[null, null, null, 0, null]]);
  assert.equal(c.undrawable, 3);
});

test("series beyond the limit are counted, not drawn", async () => {
  const many = Array.from({ length: 5 }, (_, i) => ({ metric: { i: String(i) }, values: [] }));
  const c = matrixColumns(await scanned(many, GRID), GRID, 2);
  assert.equal(c.values.length, 2);
  assert.equal(c.omitted, 3);
});

test("native histograms are drawn as their counts", async () => {
  const c = matrixColumns(await scanned([{ metric: {}, histograms: [[11, { count: "7", sum: "3.5" }]] }], GRID), GRID, 10);
  assert.deepEqual(plain(c.values), [[null, 7, null, null, null]]);
  assert.equal(c.histograms, 1);
});

test("a stack sums what is shown; a gap adds nothing and is kept", () => {
  const values = [[1, 1, NaN], [2, NaN, 2], [4, 4, 4]].map((c) => Float64Array.from(c));
  assert.deepEqual(plain(stackColumns(values, () => true)), [[1, 1, null], [3, null, 2], [7, 5, 6]]);
  assert.deepEqual(plain(stackColumns(values, (i) => i !== 1)), [[1, 1, null], [null, null, null], [5, 5, 4]]);
});

test("summaries leave gaps out", () => {
  const c = columnsOf(GRID, [[NaN, 3, NaN, -1, 4], [NaN, NaN, NaN, NaN, NaN]].map((v) => Float64Array.from(v)), [{}, {}], 0);
  assert.deepEqual(summary(c, 0), { min: -1, max: 4, mean: 2, last: 4 });
  assert.equal(summary(c, 1), null);
});

test("lone samples are those a line would not show", () => {
  assert.deepEqual(loneSamples([1, null, 2, 3, null, 4]), [0, 5]);
  assert.deepEqual(loneSamples([null, 0, undefined]), [1]);
});

test("a histogram's bars are as high as their share of the highest", () => {
  const v = viewHistogram({ count: "6", sum: "12", buckets: [[0, "1", "2", "4"], [3, "-0.5", "0.5", "2"]] });
  assert.deepEqual(v.bars.map((b) => [b.text, b.height]), [["(1, 2]", 1], ["[-0.5, 0.5]", 0.5]]);
  assert.equal(v.mean, 2);
  assert.deepEqual(viewHistogram({ count: "0", sum: "0" }).bars, []);
});
