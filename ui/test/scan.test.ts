// The scan of range queries' responses: whatever the cuts between chunks, the samples are those that JSON.parse reads.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Density, densityPixels } from "../src/lib/density.ts";
import { parseSample } from "../src/lib/format.ts";
import { seriesText } from "../src/lib/labels.ts";
import type { MatrixSeries } from "../src/lib/matrix.ts";
import { scanBytes, scanned } from "./scanned.ts";

const GRID = { start: 0, end: 9000, step: 1000 };

const NUMBERS = ["0", "-0", "1", "-1.5", "0.1", "123456789012345", "1234567890123456789", "0.000001", "1e-07", "1.7976931348623157e+308", "5e-324", "-2.5E3", "0.30000000000000004", "9007199254740993", "100000000000000000000000", "3.141592653589793", "0.1234567890123456789012345"];
const TEXTS = ["", "a", 'q"uo\\te', "é漢\u{1f525}", "]}{[,:", '"result":[', "\u0000\n\t"];

function series(seed: number): MatrixSeries[] {
  let x = seed;
  const next = (n: number) => { x = (Math.imul(x, 1664525) + 1013904223) >>> 0; return Math.floor((x / 2 ** 32) * n); };
  return Array.from({ length: next(7) }, (_, i): MatrixSeries => {
    const metric = Object.fromEntries([["i", String(i)], ...Array.from({ length: next(4) }, () => [`l${TEXTS[next(TEXTS.length)]}`, TEXTS[next(TEXTS.length)]!])]);
    const times = Array.from({ length: 10 }, (_, t) => t).filter(() => next(3) > 0);
    if (next(4) === 0) return { metric, histograms: times.map((t) => [t, { count: NUMBERS[next(3)]!, sum: "1", buckets: [[0, "1", "2", "3"]] }]) };
    return { metric, values: times.map((t) => [t, [...NUMBERS, "NaN", "+Inf", "-Inf"][next(NUMBERS.length + 3)]!]) };
  });
}

test("MatrixScan: every sample is what JSON.parse reads, however the response is cut", async () => {
  for (let seed = 1; seed <= 150; seed++) {
    const list = series(seed);
    for (const chunk of [1, 7, 64, undefined]) {
      const m = await scanned(list, GRID, chunk);
      assert.deepEqual(m.labels, list.map((s) => s.metric), `seed ${seed}, chunks of ${chunk}`);
      assert.deepEqual(m.names, list.map((s) => seriesText(s.metric)));
      list.forEach((s, i) => {
        const want = new Float64Array(10).fill(NaN);
        let lost = 0;
        const at = (t: number, v: number) => { if (Number.isFinite(v)) want[t] = v; else lost++; };
        for (const [t, v] of s.values ?? []) at(t, parseSample(v));
        for (const [t, h] of s.histograms ?? []) at(t, parseSample(h.count));
        assert.deepEqual(m.values[i], want, `seed ${seed}, series ${i}`);
        assert.equal(m.figures[i * 6 + 4], lost);
        assert.deepEqual(m.native.get(i), s.histograms);
      });
    }
  }
});

test("MatrixScan: what is outside of the series is kept, in any order and with any spaces", async () => {
  const text = `{ "warnings" : ["a]\\"é"], "data" : { "stats": {"x": [[1, 2]]} , "result" : [ { "values" : [ [ 1 , "2" ] , [2,"3"] ] , "new": {"a":[1,"]"]}, "metric" : { "a" : "b" } } , {"metric":{},"values":[]} ] , "resultType": "matrix" }, "infos": ["i"], "status":"success" }`;
  for (const chunk of [1, 5, 1000]) {
    const { matrix, rest } = await scanBytes(new TextEncoder().encode(text), GRID, chunk);
    const whole = JSON.parse(text) as { data: { result: unknown[] } };
    whole.data.result = [];
    assert.deepEqual(JSON.parse(rest), whole);
    assert.deepEqual(matrix.labels, [{ a: "b" }, {}]);
    assert.deepEqual([...matrix.values[0]!].slice(0, 4), [NaN, 2, 3, NaN]);
  }
});

test("MatrixScan: what is no result fails with words, and an error response passes", async () => {
  const wrap = (result: string) => new TextEncoder().encode(`{"status":"success","data":{"resultType":"matrix","result":[${result}]}}`);
  for (const bad of ['{"metric":{},"values":[[1,2]]}', '{"metric":{},"values":[[1,"x"]]}', '{"metric":{},"values":[[1,""]]}', '{"metric":{},"values":[[1,"."]]}', '{"metric":{a},"values":[]}', "[1]", '{"metric":{},"values":{}}']) {
    for (const chunk of [1, 1000]) await assert.rejects(scanBytes(wrap(bad), GRID, chunk), /response/, bad);
  }
  const error = '{"status":"error","errorType":"bad_data","error":"x: \\"result\\":["}';
  assert.equal((await scanBytes(new TextEncoder().encode(error), GRID)).rest, error);
  await assert.rejects(scanBytes(wrap('{"metric":{},"values":[]},'.repeat(5) + '{"metric":{},"values":[]}'), { start: 0, end: 1e13, step: 1000 }), /array|memory|more samples/i);
});

test("MatrixScan: batches join in the response's order", async () => {
  const list = Array.from({ length: 1000 }, (_, i): MatrixSeries => ({ metric: { i: String(i) }, values: [[i % 10, String(i)]] }));
  const m = await scanned(list, GRID, 1000);
  assert.ok(m.values.every((c, i) => c[i % 10] === i && m.names[i] === `{i="${i}"}` && m.figures[i * 6 + 3] === i));
});

test("Density: each line counts once for each pixel that it passes", () => {
  const d = new Density({ width: 9, height: 5, left: 0, right: 8 });
  const y = (v: number) => 4 - v;
  d.add(Float64Array.of(0, 0, 0), y);
  d.add(Float64Array.of(0, 4, 0), y);
  d.add(Float64Array.of(NaN, 4, NaN), y);
  d.add(Float64Array.of(99, 99, 99), y);
  const { counts, max } = d.counts();
  const row = (r: number) => [...counts.subarray(r * 9, r * 9 + 9)];
  assert.deepEqual(row(4), [2, 2, 1, 1, 1, 1, 1, 2, 2]);
  assert.equal(row(0)[4], 2);
  assert.equal(max, 2);
  for (let x = 0; x < 9; x++) assert.ok([0, 1, 2, 3, 4].reduce((n, r) => n + row(r)[x]!, 0) >= 2, `both lines pass column ${x}`);
  const pixels = densityPixels(counts, max, [1, 2, 3]);
  assert.deepEqual([...pixels.subarray(0, 4)], [0, 0, 0, 0]);
  assert.deepEqual([...pixels.subarray(4 * 36, 4 * 36 + 4)], [1, 2, 3, 255]);
});
