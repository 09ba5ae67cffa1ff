// Histograms as cells of a heat map: buckets by time, each with its count of observations (or their rate).
import { parseSample } from "./format.ts";
import type { Matrix } from "./matrix.ts";
import { gridLength, type Grid } from "./step.ts";

export interface HeatRow { lower: number; upper: number; counts: Float64Array }

export interface Heat { rows: HeatRow[]; columns: number; max: number }

/** More rows than pixels show nothing: neighbours are joined until this many are left. */
const ROWS_MAX = 160;

/** Classic histograms come as series with le, native ones as buckets; null where there are neither. */
export function heatOf(m: Matrix, g: Grid): Heat | null {
  const n = gridLength(g);
  const rows = m.native.size > 0 ? nativeRows(m, g, n) : classicRows(m, n);
  if (rows.length === 0) return null;
  let joined = rows.sort((a, b) => a.lower - b.lower || a.upper - b.upper);
  while (joined.length > ROWS_MAX) joined = joinPairs(joined, n);
  let max = 0;
  for (const r of joined) for (const v of r.counts) if (v > max) max = v;
  return { rows: trimEmpty(joined), columns: n, max };
}

function slot(g: Grid, n: number, seconds: number): number {
  const i = Math.round((seconds * 1000 - g.start) / g.step);
  return i >= 0 && i < n ? i : -1;
}

/** Cumulative counts of all series with one le are added up, then neighbours are subtracted. */
function classicRows(m: Matrix, n: number): HeatRow[] {
  const sums = new Map<number, Float64Array>();
  m.labels.forEach((labels, at) => {
    const le = parseSample(labels["le"] ?? "");
    if (labels["le"] === undefined || Number.isNaN(le)) return;
    let row = sums.get(le);
    if (!row) sums.set(le, (row = new Float64Array(n).fill(NaN)));
    const column = m.values[at]!;
    for (let i = 0; i < n; i++) if (!Number.isNaN(column[i]!)) row[i] = (Number.isNaN(row[i]!) ? 0 : row[i]!) + column[i]!;
  });
  const bounds = [...sums.keys()].sort((a, b) => a - b);
  return bounds.map((upper, k): HeatRow => {
    const lower = k === 0 ? Math.min(0, upper) : bounds[k - 1]!;
    const [own, below] = [sums.get(upper)!, k === 0 ? null : sums.get(bounds[k - 1]!)!];
    // Scrapes are not atomic: a bucket may be behind the one below it for a short time.
    return { lower, upper, counts: own.map((v, i) => Math.max(0, v - (below && !Number.isNaN(below[i]!) ? below[i]! : 0))) };
  });
}

function nativeRows(m: Matrix, g: Grid, n: number): HeatRow[] {
  const rows = new Map<string, HeatRow>();
  for (const samples of m.native.values()) {
    for (const [t, h] of samples) {
      const i = slot(g, n, t);
      if (i < 0) continue;
      for (const [, lower, upper, count] of h.buckets ?? []) {
        const key = `${lower}|${upper}`;
        let row = rows.get(key);
        if (!row) rows.set(key, (row = { lower: parseSample(lower), upper: parseSample(upper), counts: new Float64Array(n).fill(NaN) }));
        const v = parseSample(count);
        if (Number.isFinite(v)) row.counts[i] = (Number.isNaN(row.counts[i]!) ? 0 : row.counts[i]!) + v;
      }
    }
  }
  return [...rows.values()];
}

function joinPairs(rows: HeatRow[], n: number): HeatRow[] {
  const out: HeatRow[] = [];
  for (let i = 0; i < rows.length; i += 2) {
    const [a, b] = [rows[i]!, rows[i + 1]];
    if (!b) { out.push(a); break; }
    const counts = new Float64Array(n);
    for (let x = 0; x < n; x++) counts[x] = Number.isNaN(a.counts[x]!) ? b.counts[x]! : a.counts[x]! + (Number.isNaN(b.counts[x]!) ? 0 : b.counts[x]!);
    out.push({ lower: a.lower, upper: b.upper, counts });
  }
  return out;
}

/** Buckets at both ends in which nothing was ever observed. */
function trimEmpty(rows: HeatRow[]): HeatRow[] {
  const full = (r: HeatRow) => r.counts.some((v) => v > 0);
  const first = rows.findIndex(full);
  return first < 0 ? rows : rows.slice(first, rows.findLastIndex(full) + 1);
}

/** 0 for nothing, else from 0.08 to 1: the least observation is seen. The square root shows more of what is rare. */
export const shade = (v: number, max: number): number => (v > 0 && max > 0 ? 0.08 + 0.92 * Math.sqrt(v / max) : 0);
