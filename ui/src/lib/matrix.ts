// A range query's result as columns: one array of times, one of values per series, all of one length, NaN where a series has
// no sample. The arrays are views of what the scan of the response has made; nothing here copies them.
import { formatDuration } from "./duration.ts";
import { seriesText, type Labels } from "./labels.ts";
import { gridLength, type Grid } from "./step.ts";

export interface HistogramValue { count: string; sum: string; buckets?: [number, string, string, string][] }
export type NativeSample = [number, HistogramValue];

/** As the API writes a series of samples. */
export interface MatrixSeries { metric: Labels; values?: [number, string][]; histograms?: NativeSample[] }

/** Numbers of one series in `figures`: those of a Summary, the samples without a place, and 1 where it is of native histograms. */
export const FIGURES = 6;

/** The whole result of a range query. */
export interface Matrix {
  labels: Labels[];
  /** Each series as a selector. */
  names: string[];
  values: Column[];
  figures: Float64Array;
  /** By series: native histograms with their buckets. What `values` has of them is their counts. */
  native: ReadonlyMap<number, NativeSample[]>;
}

export type Column = Float64Array;

export interface Columns {
  /** Seconds, as uPlot wants them. */
  times: number[];
  values: readonly Column[];
  labels: readonly Labels[];
  names: readonly string[];
  figures: Float64Array;
  /** Series in the result that are not drawn because there are too many. */
  omitted: number;
  /** Samples that have no place on a linear axis: NaN and infinities. They stay gaps. */
  undrawable: number;
  /** Series of native histograms; what is drawn of them is their count of observations. */
  histograms: number;
  /** For each line the line of now that it is an earlier course of, or -1. Absent where nothing is compared. */
  earlierOf?: readonly number[];
}

/** Columns of values that are at hand as such. */
export function columnsOf(g: Grid, values: readonly Column[], labels: readonly Labels[], omitted: number): Columns {
  const figures = new Float64Array(values.length * FIGURES);
  values.forEach((column, i) => figures.set(figuresOf(column), i * FIGURES));
  return { times: gridTimes(g), values, labels, names: labels.map(seriesText), figures, omitted, undrawable: 0, histograms: 0 };
}

/** Steps without a sample stay gaps: a gap in the data must be a gap on the screen. */
export function matrixColumns(m: Matrix, g: Grid, seriesMax: number): Columns {
  const drawn = largestLast(m, seriesMax);
  const all = drawn.length === m.names.length;
  const figures = all ? m.figures : pickFigures(m.figures, drawn);
  let [undrawable, histograms] = [0, 0];
  for (let i = 0; i < drawn.length; i++) {
    undrawable += figures[i * FIGURES + 4]!;
    histograms += figures[i * FIGURES + 5]!;
  }
  return {
    times: gridTimes(g),
    values: all ? m.values : drawn.map((i) => m.values[i]!),
    labels: all ? m.labels : drawn.map((i) => m.labels[i]!),
    names: all ? m.names : drawn.map((i) => m.names[i]!),
    figures, undrawable, histograms,
    omitted: m.names.length - drawn.length,
  };
}

/** Seconds of the grid's steps. */
export const gridTimes = (g: Grid): number[] => Array.from({ length: gridLength(g) }, (_, i) => (g.start + i * g.step) / 1000);

function pickFigures(from: Float64Array, rows: readonly number[]): Float64Array {
  const out = new Float64Array(rows.length * FIGURES);
  rows.forEach((r, i) => out.set(from.subarray(r * FIGURES, (r + 1) * FIGURES), i * FIGURES));
  return out;
}

/** The series with the largest last values, in the server's order; all of them if there are not more than seriesMax. */
export function largestLast(m: Matrix, seriesMax: number): number[] {
  const order = m.names.map((_, i) => i);
  if (order.length <= seriesMax) return order;
  const last = Float64Array.from(order, (i) => { const v = m.figures[i * FIGURES + 3]!; return Number.isNaN(v) ? -Infinity : v; });
  const least = last.slice().sort()[last.length - seriesMax]!;
  // Several series may have the least value that is selected. The first of them are taken, up to the limit.
  let room = seriesMax - last.reduce((n, v) => n + Number(v > least), 0);
  return order.filter((i) => last[i]! > least || (last[i] === least && room-- > 0));
}

/** Label of a line of an earlier time. No metric has it: it is no name of a label. */
export const EARLIER_LABEL = "(earlier)";

/** Adds the same lines of an earlier time, moved to the times of now. Lines that are no longer there are left out. */
export function withEarlier(now: Columns, before: Matrix, earlierMS: number): Columns {
  const at = new Map(now.names.map((n, i) => [n, i]));
  const fitting = before.names.flatMap((n, i) => (at.has(n) ? [i] : []));
  const n = now.times.length;
  const text = formatDuration(earlierMS);
  const figures = pickFigures(before.figures, fitting);
  const labels = fitting.map((i) => ({ ...before.labels[i]!, [EARLIER_LABEL]: text }));
  return {
    ...now,
    // A grid that begins earlier by a multiple of the step has the same length.
    values: [...now.values, ...fitting.map((i) => before.values[i]!.subarray(0, n))],
    labels: [...now.labels, ...labels],
    names: [...now.names, ...labels.map(seriesText)],
    figures: Float64Array.from([...now.figures, ...figures]),
    undrawable: now.undrawable + fitting.reduce((sum, _, i) => sum + figures[i * FIGURES + 4]!, 0),
    earlierOf: [...now.labels.map(() => -1), ...fitting.map((i) => at.get(before.names[i]!)!)],
  };
}

/** A column as uPlot wants it: null where there is no sample. */
export const withNulls = (column: Column): (number | null)[] => Array.from(column, (v) => (Number.isNaN(v) ? null : v));

/** Each shown column on top of the shown ones before it. Hidden columns become all gaps; a gap adds nothing above it. */
export function stackColumns(values: readonly Column[], shown: (i: number) => boolean): Column[] {
  const sums = new Float64Array(values[0]?.length ?? 0);
  return values.map((column, i) => column.map((v, x) => (Number.isNaN(v) || !shown(i) ? NaN : (sums[x] = sums[x]! + v))));
}

export interface Summary { min: number; max: number; mean: number; last: number }

/** The figures of a legend's row; null where the column is nothing but gaps. */
export function summary(c: Pick<Columns, "figures">, i: number): Summary | null {
  const [min, max, mean, last] = c.figures.subarray(i * FIGURES, i * FIGURES + 4) as unknown as [number, number, number, number];
  return Number.isNaN(min) ? null : { min, max, mean, last };
}

/** Least, greatest, mean and last value, NaN where there is none; how many samples have no place; whether it is of histograms. */
export function figuresOf(column: Float64Array, undrawable = 0, native = false): number[] {
  let [min, max, sum, n, last] = [Infinity, -Infinity, 0, 0, NaN];
  for (const v of column) {
    if (Number.isNaN(v)) continue;
    if (v < min) min = v;
    if (v > max) max = v;
    sum += v;
    last = v;
    n++;
  }
  return n === 0 ? [NaN, NaN, NaN, NaN, undrawable, Number(native)] : [min, max, sum / n, last, undrawable, Number(native)];
}

/** Indices of samples with a gap on both sides: a line alone would not show them. */
export function loneSamples(column: ArrayLike<number | null | undefined>): number[] {
  const out: number[] = [];
  for (let i = 0; i < column.length; i++) {
    if (column[i] != null && column[i - 1] == null && column[i + 1] == null) out.push(i);
  }
  return out;
}
