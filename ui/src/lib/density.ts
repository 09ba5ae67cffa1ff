// Thousands of lines as one picture: the number of lines at each pixel. A line costs two additions for each
// column of pixels, however steep it is: +1 at the first pixel of the line, -1 below its last pixel. The running sums
// down each column are the counts.

export interface Area { width: number; height: number; /** Pixels of the first and the last time. */ left: number; right: number }

export class Density {
  readonly width: number;
  readonly height: number;
  private readonly steps: Int32Array;
  private readonly area: Area;

  constructor(area: Area) {
    this.area = area;
    this.width = Math.max(1, Math.floor(area.width));
    this.height = Math.max(1, Math.floor(area.height));
    this.steps = new Int32Array(this.width * (this.height + 1));
  }

  /** Adds a line. `toY` gives the pixel of a value, from the top; NaN for none. Samples next to gaps are dots. */
  add(column: Float64Array, toY: (v: number) => number): void {
    const { left, right } = this.area;
    const dx = column.length > 1 ? (right - left) / (column.length - 1) : 0;
    let [x0, y0, joined] = [0, NaN, true];
    let done = -1; // the last column of pixels that has this line
    for (let i = 0; i < column.length; i++) {
      const x1 = left + i * dx;
      const y1 = toY(column[i]!);
      if (Number.isNaN(y1)) {
        if (!joined) done = this.mark(Math.round(x0), y0, y0, done);
      } else {
        if (!Number.isNaN(y0)) {
          done = this.segment(x0, y0, x1, y1, done);
          joined = true;
        } else joined = false;
        if (i === column.length - 1 && !joined) this.mark(Math.round(x1), y1, y1, done);
      }
      [x0, y0] = [x1, y1];
    }
  }

  private segment(x0: number, y0: number, x1: number, y1: number, done: number): number {
    const slope = x1 > x0 ? (y1 - y0) / (x1 - x0) : 0;
    const last = Math.round(x1);
    for (let x = Math.max(Math.round(x0), done + 1); x <= last; x++) {
      const a = y0 + slope * (Math.max(x0, x - 0.5) - x0);
      const b = y0 + slope * (Math.min(x1, x + 0.5) - x0);
      done = this.mark(x, a < b ? a : b, a < b ? b : a, done);
    }
    return done;
  }

  private mark(x: number, from: number, to: number, done: number): number {
    if (x <= done || x < 0 || x >= this.width) return done;
    const bottom = this.height - 1;
    const [top, end] = [Math.round(from), Math.round(to)];
    if (end < 0 || top > bottom) return x;
    const at = x * (this.height + 1);
    this.steps[at + (top < 0 ? 0 : top)]!++;
    this.steps[at + (end > bottom ? bottom : end) + 1]!--;
    return x;
  }

  /** Lines by pixel, row by row, and the most of them. */
  counts(): { counts: Int32Array; max: number } {
    const { width, height, steps } = this;
    const counts = new Int32Array(width * height);
    let max = 0;
    for (let x = 0; x < width; x++) {
      let n = 0;
      for (let y = 0; y < height; y++) {
        n += steps[x * (height + 1) + y]!;
        counts[y * width + x] = n;
        if (n > max) max = n;
      }
    }
    return { counts, max };
  }
}

/** RGBA of the counts: one colour, more opaque where more lines are; a single line can still be seen. */
export function densityPixels(counts: Int32Array, max: number, [r, g, b]: readonly [number, number, number]): Uint8ClampedArray<ArrayBuffer> {
  const out = new Uint8ClampedArray(counts.length * 4);
  const full = Math.log1p(Math.max(1, max));
  // There are far fewer counts than pixels.
  const alphas = Uint8ClampedArray.from({ length: Math.max(1, max) + 1 }, (_, n) => (n === 0 ? 0 : 255 * (0.12 + 0.88 * (Math.log1p(n) / full))));
  for (let i = 0, at = 0; i < counts.length; i++, at += 4) {
    const n = counts[i]!;
    if (n === 0) continue;
    out[at] = r;
    out[at + 1] = g;
    out[at + 2] = b;
    out[at + 3] = alphas[n]!;
  }
  return out;
}
