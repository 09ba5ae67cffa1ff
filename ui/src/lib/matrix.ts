// From a range query's result to the columns uPlot draws: one array of times, one of values per series, all of one length.
import { formatDuration } from "./duration.ts";
import { parseSample } from "./format.ts";
import type { Labels } from "./labels.ts";
import { gridLength, type Grid } from "./step.ts";

export interface HistogramValue { count: string; sum: string; buckets?: [number, string, string, string][] }

export interface MatrixSeries {
  metric: Labels;
  values?: [number, string][];
  histograms?: [number, HistogramValue][];
}

export type Column = (number | null)[];

export interface Columns {
  /** Seconds, as uPlot wants them. */
  times: number[];
  values: Column[];
  labels: Labels[];
  /** Series in the result that are not drawn because there are too many. */
  omitted: number;
  /** Samples that have no place on a linear axis: NaN and infinities. They stay gaps. */
  undrawable: number;
  /** Series of native histograms; what is drawn of them is their count of observations. */
  histograms: number;
  /** For each line the line of now that it is an earlier course of, or -1. Absent where nothing is compared. */
  earlierOf?: number[];
}

/** Steps without a sample stay null: a gap in the data must be a gap on the screen. */
export function matrixColumns(series: readonly MatrixSeries[], g: Grid, seriesMax: number): Columns {
  const n = gridLength(g);
  const drawn = largestLast(series, seriesMax);
  const out: Columns = {
    times: Array.from({ length: n }, (_, i) => (g.start + i * g.step) / 1000),
    values: [],
    labels: drawn.map((s) => s.metric),
    omitted: series.length - drawn.length,
    undrawable: 0,
    histograms: 0,
  };
  for (const s of drawn) {
    const column: Column = new Array<number | null>(n).fill(null);
    for (const [t, text] of s.values ?? []) out.undrawable += place(column, g, t, parseSample(text));
    for (const [t, h] of s.histograms ?? []) out.undrawable += place(column, g, t, parseSample(h.count));
    if (s.histograms) out.histograms++;
    out.values.push(column);
  }
  return out;
}

/** The series with the largest last values, in the server's order; all of them if there are not more than seriesMax. */
export function largestLast(series: readonly MatrixSeries[], seriesMax: number): readonly MatrixSeries[] {
  if (series.length <= seriesMax) return series;
  const last = series.map((s) => {
    const v = parseSample(s.values?.at(-1)?.[1] ?? s.histograms?.at(-1)?.[1].count ?? "NaN");
    return Number.isNaN(v) ? -Infinity : v;
  });
  const order = last.map((_, i) => i).sort((a, b) => (last[a] === last[b] ? a - b : last[a]! > last[b]! ? -1 : 1)).slice(0, seriesMax).sort((a, b) => a - b);
  return order.map((i) => series[i]!);
}

/** Label of a line of an earlier time. No metric has it: it is no name of a label. */
export const EARLIER_LABEL = "(earlier)";

/** Adds the same lines of an earlier time, moved to the times of now. Lines that are no longer there are left out. */
export function withEarlier(now: Columns, before: readonly MatrixSeries[], g: Grid, earlierMS: number): Columns {
  const keyOf = (l: Labels) => JSON.stringify(Object.entries(l).sort(([a], [b]) => (a < b ? -1 : 1)));
  const at = new Map(now.labels.map((l, i) => [keyOf(l), i]));
  const fitting = before.filter((s) => at.has(keyOf(s.metric)));
  const then = matrixColumns(fitting, { ...g, start: g.start - earlierMS, end: g.end - earlierMS }, Infinity);
  return {
    ...now,
    values: [...now.values, ...then.values],
    labels: [...now.labels, ...fitting.map((s) => ({ ...s.metric, [EARLIER_LABEL]: formatDuration(earlierMS) }))],
    undrawable: now.undrawable + then.undrawable,
    earlierOf: [...now.labels.map(() => -1), ...fitting.map((s) => at.get(keyOf(s.metric))!)],
  };
}

/** Returns 1 where the value cannot be drawn, which the caller adds up. */
function place(column: Column, g: Grid, seconds: number, v: number): number {
  const i = Math.round((seconds * 1000 - g.start) / g.step);
  if (i < 0 || i >= column.length) return 0;
  if (!Number.isFinite(v)) return 1;
  column[i] = v;
  return 0;
}

/** Each shown column on top of the shown ones before it. Hidden columns become all gaps; a gap adds nothing above it. */
export function stackColumns(values: readonly Column[], shown: (i: number) => boolean): Column[] {
  const sums = new Array<number>(values[0]?.length ?? 0).fill(0);
  return values.map((column, i) =>
    column.map((v, x) => (v === null || !shown(i) ? null : (sums[x] = sums[x]! + v))));
}

export interface Summary { min: number; max: number; mean: number; last: number }

/** The figures of a legend's row; null where the column is nothing but gaps. */
export function summarize(column: Column): Summary | null {
  let [min, max, sum, n, last] = [Infinity, -Infinity, 0, 0, 0];
  for (const v of column) {
    if (v === null) continue;
    if (v < min) min = v;
    if (v > max) max = v;
    sum += v;
    last = v;
    n++;
  }
  return n === 0 ? null : { min, max, mean: sum / n, last };
}

/** Indices of samples with a gap on both sides: a line alone would not show them. */
export function loneSamples(column: ArrayLike<number | null | undefined>): number[] {
  const out: number[] = [];
  for (let i = 0; i < column.length; i++) {
    if (column[i] != null && column[i - 1] == null && column[i + 1] == null) out.push(i);
  }
  return out;
}
