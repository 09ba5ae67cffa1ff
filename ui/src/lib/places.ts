// The values of many lines, stored by step: the line nearest to the pointer is searched among the values of one step, which are
// adjacent in memory.

/** Lines times steps: 128 MiB. More are not kept: then every line is looked at where its values are. */
const CELLS_MAX = 1 << 25;

export class Places {
  /** By step, one pixel for each line; NaN where it has none. */
  private readonly y: Float32Array | null;
  private readonly lines: readonly number[];
  private readonly columns: (Float64Array | null)[];
  private toY: (v: number) => number = (v) => v;

  constructor(lines: readonly number[], steps: number, cellsMax = CELLS_MAX) {
    this.lines = lines;
    this.y = lines.length * steps <= cellsMax ? new Float32Array(lines.length * steps) : null;
    this.columns = this.y ? [] : lines.map(() => null);
  }

  /** The k-th line, which has a value or NaN for each step; every line is to be added before any is looked for. `toY` gives the pixel of a value from the top, NaN for none. */
  add(k: number, column: Float64Array, toY: (v: number) => number): void {
    const { y, lines } = this;
    if (!y) {
      this.columns[k] = column;
      this.toY = toY;
      return;
    }
    const n = lines.length;
    for (let i = 0, at = k; at < y.length; i++, at += n) y[at] = i < column.length ? toY(column[i]!) : NaN;
  }

  /** The line nearest to a pixel at a step, the first of equal ones; -1 where no line has a value. */
  nearest(step: number, at: number): number {
    const n = this.lines.length;
    // A step beyond the last one has undefined, and so no line.
    let [best, bestDistance] = [-1, Infinity];
    for (let k = 0; k < n; k++) {
      const y = this.y ? this.y[step * n + k]! : this.toY(this.columns[k]?.[step] ?? NaN);
      const distance = y < at ? at - y : y - at;
      if (distance < bestDistance) { best = k; bestDistance = distance; }
    }
    return best < 0 ? -1 : this.lines[best]!;
  }
}
