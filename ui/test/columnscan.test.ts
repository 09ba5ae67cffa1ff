// Columns: whatever the cuts between chunks, they give what the JSON of the same response gives; what is not whole or not true is an
// error.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { APIError, Server } from "../src/api/client.ts";
import { COLUMNS, Scanner, type Scanned } from "../src/api/scan.ts";
import type { Labels } from "../src/lib/labels.ts";
import type { MatrixSeries } from "../src/lib/matrix.ts";
import type { Grid } from "../src/lib/step.ts";
import { NO_WORKER, scanBytes } from "./scanned.ts";

interface Of { start: number; step: number; steps: number }
interface Row { metric: Labels; samples: [number, number][] }
interface Columns {
  encode(grid: Of, list: readonly Row[], rest?: string, perSection?: number): Uint8Array<ArrayBuffer>;
  decode(bytes: Uint8Array): { data: { result: MatrixSeries[] } };
}

// From the tests in the browser, which are not compiled.
const { encode, decode } = (await import(new URL("../../e2e/columns.mjs", import.meta.url).href)) as Columns;
const own = (b: Uint8Array): Uint8Array<ArrayBuffer> => Uint8Array.from(b);

const VALUES = [NaN, Infinity, -Infinity, 0, -0, 5e-324, 1.7976931348623157e308, 0.1, -1e21, 2 ** 53];
const TEXTS = ["", "a", 'q"uo\\te', "é漢\u{1f525}", "]}{[,:", '"result":[', "\u0000\n\t"];

function random(seed: number): { grid: Of; rows: Row[] } {
  let x = seed;
  const next = (n: number) => { x = (Math.imul(x, 1664525) + 1013904223) >>> 0; return Math.floor((x / 2 ** 32) * n); };
  const steps = [1, 2, 9, 64][next(4)]!;
  const rows = Array.from({ length: [0, 1, 3, 40, 300][next(5)]! }, (_, i): Row => {
    const metric = Object.fromEntries([["i", String(i)], ...Array.from({ length: next(4) }, () => [`l${TEXTS[next(TEXTS.length)]}`, TEXTS[next(TEXTS.length)]!])]);
    const share = next(4);
    const at = Array.from({ length: steps }, (_, s) => s).filter(() => next(3) < share);
    return { metric, samples: at.map((s) => [s, next(2) === 0 ? VALUES[next(VALUES.length)]! : next(1e6) / 7]) };
  });
  return { grid: { start: 1_700_000_000_000 + next(1000), step: 1 + next(20_000), steps }, rows };
}

const text = (v: number): string => (v === Infinity ? "+Inf" : v === -Infinity ? "-Inf" : Object.is(v, -0) ? "-0" : String(v));

function json({ start, step }: Of, rows: readonly Row[]): Uint8Array<ArrayBuffer> {
  const result = rows.map((r) => ({ metric: r.metric, values: r.samples.map(([i, v]) => [(start + i * step) / 1000, text(v)]) }));
  return new TextEncoder().encode(JSON.stringify({ status: "success", data: { resultType: "matrix", result } }));
}

const page = (g: Of): Grid => ({ start: g.start, end: g.start + (g.steps - 1) * g.step, step: g.step });

/** What the page makes of both, without the order in which batches came. */
function same(got: Scanned, want: Scanned, what: string): void {
  assert.deepEqual(got.matrix, want.matrix, what);
  assert.deepEqual(JSON.parse(got.rest), JSON.parse(want.rest), what);
}

test("ColumnScan: columns give what the JSON of the same response gives, however they are cut", async () => {
  for (let seed = 1; seed <= 60; seed++) {
    const { grid, rows } = random(seed);
    const want = await scanBytes(json(grid, rows), page(grid));
    const bytes = own(encode(grid, rows, undefined, [1, 7, 256][seed % 3]!));
    for (const chunk of [bytes.length < 5000 ? 1 : 61, 7, 4096, bytes.length]) same(await scanBytes(bytes, page(grid), chunk, true), want, `seed ${seed}, chunks of ${chunk}`);
    // The page's own steps decide where a sample is.
    const shifted = { ...page(grid), start: page(grid).start + 2 * grid.step };
    if (grid.steps > 2) same(await scanBytes(bytes, shifted, 4096, true), await scanBytes(json(grid, rows), shifted), `seed ${seed}, shifted`);
  }
});

test("ColumnScan: a chunk may begin anywhere in its buffer", async () => {
  const { grid, rows } = random(5);
  const bytes = own(encode(grid, rows));
  const want = await scanBytes(json(grid, rows), page(grid));
  for (let offset = 0; offset < 9; offset++) {
    const around = new Uint8Array(offset + bytes.length);
    around.set(bytes, offset);
    const sink = await new Scanner(NO_WORKER).open(page(grid), true);
    await sink.write(around.subarray(offset));
    same(await sink.end(), want, `at ${offset}`);
  }
});

test("ColumnScan: the server's own bytes give what its JSON gives", async () => {
  const dir = new URL("../../../internal/httpapi/testdata/columns/", import.meta.url);
  const names = readdirSync(dir).filter((n) => n.endsWith(".columns"));
  assert.ok(names.length >= 4, `${names}`);
  for (const name of names) {
    const bytes = own(readFileSync(new URL(name, dir)));
    const text = own(readFileSync(new URL(name.replace(".columns", ".json"), dir)));
    const view = new DataView(bytes.buffer);
    const grid = page({ start: Number(view.getBigInt64(16, true)), step: Number(view.getBigInt64(24, true)), steps: view.getUint32(32, true) });
    for (const chunk of [1, 1000, bytes.length]) same(await scanBytes(bytes, grid, chunk, true), await scanBytes(text, grid), name);
    assert.deepEqual(decode(bytes).data.result.length, (JSON.parse(new TextDecoder().decode(text)) as { data: { result: unknown[] } }).data.result.length);
  }
});

const small: Row[] = [{ metric: { a: "1" }, samples: [[0, 1], [1, 2], [3, 4]] }, { metric: { a: "2" }, samples: [[2, 5]] }];
const four: Of = { start: 0, step: 1000, steps: 4 };

test("ColumnScan: every truncation is an error, and so is a byte more", async () => {
  const bytes = own(encode(four, small));
  for (let n = 0; n < bytes.length; n++) {
    await assert.rejects(scanBytes(bytes.slice(0, n), page(four), 64, true), /ended before|not what a range query/, `${n} of ${bytes.length}`);
  }
  await assert.rejects(scanBytes(own(Buffer.concat([bytes, Buffer.alloc(1)])), page(four), 64, true), /ended before/);
  await assert.rejects(scanBytes(own(Buffer.concat([bytes, bytes])), page(four), 64, true), /not what a range query|larger than the page can hold/);
});

test("ColumnScan: lengths and counts that are not true are errors, and allocate nothing", async () => {
  const bytes = own(encode(four, small));
  const before = process.memoryUsage().arrayBuffers;
  let refused = 0;
  for (let at = 0; at + 4 <= bytes.length; at += 4) {
    for (const n of [0, 1, 5, 0x7fffffff, 0xffffffff, 0x0fffffff]) {
      const changed = own(bytes);
      new DataView(changed.buffer).setUint32(at, n, true);
      try {
        const { matrix, rest } = await scanBytes(changed, page(four), 64, true);
        assert.ok(matrix.names.length <= 2 && rest.length < 200); // a changed value or timestamp
      } catch (e) {
        refused++;
        assert.match((e as Error).message, /response/i, `${at}: ${n}`);
      }
    }
  }
  assert.ok(refused > 100, `${refused} refused`);
  assert.ok(process.memoryUsage().arrayBuffers - before < 64 << 20);
});

test("ColumnScan: a text that would exceed the limit of all texts is refused before it arrives", async () => {
  const before = "x".repeat(1 << 20);
  const bytes = own(encode(four, small, before));
  const view = new DataView(bytes.buffer);
  let at = 8;
  while (view.getUint32(at, true) !== 3) at += 8 + Math.ceil(view.getUint32(at + 4, true) / 8) * 8;
  const text = at + 8 + before.length; // where the section after it begins
  for (const [kind, length, error] of [
    [3, (32 << 20) - before.length, /ended before/], [3, (32 << 20) - before.length + 1, /larger than the page can hold/],
    [3, 256 << 20, /larger than the page can hold/], [4, 32 << 20, /larger than the page can hold/], [1, 256 << 20, /larger than the page can hold/],
  ] as const) {
    const changed = own(bytes.slice(0, text + 8));
    const head = new DataView(changed.buffer, text);
    head.setUint32(0, kind, true);
    head.setUint32(4, length, true);
    await assert.rejects(scanBytes(changed, page(four), 1 << 16, true), error, `kind ${kind}, ${length} bytes`);
  }
});

test("ColumnScan: what is no list of label sets is an error", async () => {
  for (const metric of [null, 1, "a", { a: 1 }, { a: null }, { a: {} }]) {
    await assert.rejects(scanBytes(own(encode(four, [{ metric: metric as unknown as Labels, samples: [] }])), page(four), 64, true), /not what a range query/, JSON.stringify(metric));
  }
});

test("ColumnScan: more series than the page holds are an error", async () => {
  const long: Grid = { start: 0, end: 11_000_000, step: 1000 };
  const rows = Array.from({ length: 5000 }, (_, i): Row => ({ metric: { i: String(i) }, samples: [] }));
  await assert.rejects(scanBytes(own(encode({ start: 0, step: 1000, steps: 11_001 }, rows)), long, 1 << 20, true), /more samples than the page can hold/);
});

test("Server.range: columns are accepted, and the type of the response decides how it is read", async () => {
  const real = globalThis.fetch;
  const accepted: (string | null)[] = [];
  const params = { query: "x", start: 0, end: 3, step: 1 };
  const columns = own(encode(four, small, '{"status":"success","data":{"resultType":"matrix","result":[],"stats":{}},"warnings":["w"],"infos":["i"]}'));
  const respond = (r: () => Response) => { globalThis.fetch = ((_: string, init: RequestInit) => { accepted.push(new Headers(init.headers).get("Accept")); return Promise.resolve(r()); }) as typeof fetch; };
  const range = (query = "x") => new Server("/", undefined, new Scanner(NO_WORKER)).range({ ...params, query }, new AbortController().signal);
  try {
    respond(() => new Response(columns, { headers: { "Content-Type": COLUMNS } }));
    const a = await range();
    assert.deepEqual([a.warnings, a.infos, a.bytes, a.data.matrix.names], [["w"], ["i"], columns.length, ['{a="1"}', '{a="2"}']]);
    respond(() => new Response(json(four, small), { headers: { "Content-Type": "application/json; charset=utf-8" } }));
    const b = await range();
    assert.deepEqual(b.data.matrix, a.data.matrix);
    await range("x".repeat(5000));
    assert.deepEqual(new Set(accepted), new Set([`${COLUMNS}, application/json`]));
    respond(() => new Response(columns.slice(0, -8), { headers: { "Content-Type": COLUMNS } }));
    await assert.rejects(range(), (e) => e instanceof APIError && /ended before it was complete/.test(e.message));
    respond(() => new Response(columns, { headers: { "Content-Type": "application/vnd.ferula.columns.v2" } }));
    await assert.rejects(range(), APIError);
    respond(() => new Response('{"status":"error","errorType":"bad_data","error":"no"}', { status: 400, headers: { "Content-Type": "application/json" } }));
    await assert.rejects(range(), (e) => e instanceof APIError && e.type === "bad_data");
  } finally {
    globalThis.fetch = real;
  }
});
