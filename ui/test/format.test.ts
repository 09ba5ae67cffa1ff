import assert from "node:assert/strict";
import { test } from "node:test";
import { formatBytes, formatCount, formatLong, formatShort, formatTicks, parseSample, plural } from "../src/lib/format.ts";

test("samples are read as the API writes them", () => {
  assert.equal(parseSample("1.5e+09"), 1.5e9);
  assert.equal(parseSample("+Inf"), Infinity);
  assert.equal(parseSample("-Inf"), -Infinity);
  assert.ok(Number.isNaN(parseSample("NaN")));
});

test("short values have four digits and a prefix", () => {
  const want: [number, string][] = [
    [0, "0"], [1, "1"], [-2.5, "-2.5"], [28_491_776, "28.49M"], [1000, "1k"], [999.96, "1k"], [999.4, "999.4"], [12_000_000_000, "12G"],
    [0.0042, "0.0042"], [0.00001234, "1.23e-5"], [1 / 3, "0.3333"], [NaN, "NaN"], [Infinity, "+Inf"], [-Infinity, "-Inf"], [1e30, "1e30"],
  ];
  for (const [v, text] of want) assert.equal(formatShort(v), text);
});

test("long values keep what a reader would copy", () => {
  const want: [number, string][] = [[28_491_776, "28491776"], [0.009433962, "0.009433962"], [1234.56789, "1234.5679"], [1e-9, "1e-9"], [2.5e20, "2.5e20"], [-0.5, "-0.5"]];
  for (const [v, text] of want) assert.equal(formatLong(v), text);
});

test("ticks of one axis share prefix and decimals, and no two read alike", () => {
  assert.deepEqual(formatTicks([0, 0.25, 0.5]), ["0", "0.25", "0.50"]);
  assert.deepEqual(formatTicks([0, 2_000_000, 4_000_000]), ["0", "2M", "4M"]);
  assert.deepEqual(formatTicks([999_990, 1_000_000, 1_000_010]), ["0.99999M", "1.00000M", "1.00001M"]);
  assert.deepEqual(formatTicks([-20, 0, 20]), ["-20", "0", "20"]);
  assert.deepEqual(formatTicks([]), []);
  assert.deepEqual(formatTicks([0]), ["0"]);
  for (const step of [1e-6, 0.003, 0.7, 12, 5e8]) {
    const ticks = Array.from({ length: 6 }, (_, i) => i * step);
    assert.equal(new Set(formatTicks(ticks)).size, 6, `${step}: ${formatTicks(ticks)}`);
  }
});

test("bytes and counts", () => {
  assert.equal(formatBytes(512), "512 B");
  assert.equal(formatBytes(1536), "1.5 KiB");
  assert.equal(formatBytes(15 * 2 ** 20), "15 MiB");
  assert.equal(formatCount(1234567), "1\u202f234\u202f567");
  assert.equal(plural(1, "target"), "1 target");
  assert.equal(plural(2, "target"), "2 targets");
});
