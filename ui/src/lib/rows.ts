// Rows of a range query's result that leave in batches while the response arrives: what every scan of a response produces.
import { seriesText, type Labels } from "./labels.ts";
import { FIGURES, figuresOf, type NativeSample } from "./matrix.ts";
import { gridLength, type Grid } from "./step.ts";

/** Series in the order of the response. `values` holds one row of the grid's length for each, NaN where it has no sample. */
export interface Batch { labels: Labels[]; names: string[]; values: Float64Array<ArrayBuffer>; figures: Float64Array<ArrayBuffer>; native: [number, NativeSample[]][] }

/** Values of one batch: few enough to copy between two frames. */
const BATCH_VALUES = 1 << 17;
const BATCH_SERIES = 256;
/** Places for samples of one response, 8 bytes each. */
const VALUES_MAX = 48_000_000;
/** Bytes of one series in JSON, or of one section of columns. */
export const SERIES_BYTES_MAX = 256 << 20;
/** Characters of the body outside of the series: warnings, statistics. */
export const REST_MAX = 32 << 20;

/** The response is not what a range query returns, or larger than what the page holds. */
export class ScanError extends Error {}

export const unlike = (): ScanError => new ScanError("The response is not what a range query returns");

export class Rows {
  readonly grid: Grid;
  private readonly n: number;
  private readonly emit: (b: Batch) => void;
  private readonly perBatch: number;
  private places = 0;
  private batch!: Batch;

  constructor(grid: Grid, emit: (b: Batch) => void) {
    this.grid = grid;
    this.n = gridLength(grid);
    this.emit = emit;
    this.perBatch = Math.max(1, Math.min(BATCH_SERIES, Math.floor(BATCH_VALUES / this.n)));
    this.renew();
  }

  /** The column of the next series, without samples. */
  next(): Float64Array {
    this.places += this.n;
    if (this.places > VALUES_MAX) throw new ScanError("The response has more samples than the page can hold: aggregate the series, or choose a longer step");
    const row = this.batch.labels.length;
    return this.batch.values.subarray(row * this.n, (row + 1) * this.n).fill(NaN);
  }

  /** Puts a sample of `ms` into a column. Returns 1 where the value cannot be drawn. */
  place(column: Float64Array, ms: number, v: number): number {
    const i = Math.round((ms - this.grid.start) / this.grid.step);
    if (i < 0 || i >= this.n) return 0;
    if (!Number.isFinite(v)) return 1;
    column[i] = v;
    return 0;
  }

  /** The series whose column was the last `next`. */
  add(labels: Labels, column: Float64Array, undrawable: number, native: NativeSample[] | null): void {
    if (typeof labels !== "object" || labels === null || Object.values(labels).some((v) => typeof v !== "string")) throw unlike();
    const row = this.batch.labels.length;
    this.batch.labels.push(labels);
    this.batch.names.push(seriesText(labels));
    if (native) this.batch.native.push([row, native]);
    this.batch.figures.set(figuresOf(column, undrawable, native !== null), row * FIGURES);
    if (row + 1 === this.perBatch) this.flush();
  }

  /** Emits the series that are not emitted yet. */
  flush(): void {
    const { labels, names, values, figures, native } = this.batch;
    const rows = labels.length;
    if (rows === 0) return;
    const full = rows === this.perBatch;
    this.emit({ labels, names, native, values: full ? values : values.slice(0, rows * this.n), figures: full ? figures : figures.slice(0, rows * FIGURES) });
    this.renew();
  }

  private renew(): void {
    this.batch = { labels: [], names: [], native: [], values: new Float64Array(this.perBatch * this.n), figures: new Float64Array(this.perBatch * FIGURES) };
  }
}
