// Scans the JSON of a range query's response while it arrives. Input: the bytes of the body in chunks of any size. Output:
// batches of series, whose samples are at their steps of the grid, and at the end the body without the series. Memory holds the text
// of one series at a time, and no sample becomes a string. The code uses no DOM: it runs in a worker,
// or, if there is none, chunk by chunk on the main thread.
import { parseSample } from "./format.ts";
import type { Labels } from "./labels.ts";
import type { NativeSample } from "./matrix.ts";
import { REST_MAX, Rows, ScanError, SERIES_BYTES_MAX, unlike, type Batch } from "./rows.ts";
import type { Grid } from "./step.ts";

const [QUOTE, BACKSLASH, OPEN, CLOSE, OPEN_LIST, CLOSE_LIST, COMMA, COLON] = [34, 92, 123, 125, 91, 93, 44, 58];
const POWERS = [1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22];
const ASCII = new TextDecoder("latin1");

export class MatrixScan {
  private readonly rows: Rows;
  /** The body outside of the series. */
  private rest = "";
  private readonly decoder = new TextDecoder();
  private depth = 0;
  private inString = false;
  private escaped = false;
  private inResult = false;
  /** The beginning of a series whose end is in a later chunk. */
  private held: Uint8Array[] = [];
  private heldBytes = 0;
  // State of the series that is being read.
  private bytes: Uint8Array = new Uint8Array();
  private at = 0;

  constructor(grid: Grid, emit: (b: Batch) => void) {
    this.rows = new Rows(grid, emit);
  }

  /** Scans one chunk, which it does not keep. */
  write(chunk: Uint8Array): void {
    for (let i = 0; i < chunk.length;) i = this.inResult ? this.series(chunk, i) : this.outside(chunk, i);
  }

  /** The body with an empty list in place of its series. */
  end(): string {
    this.rest += this.decoder.decode();
    this.rows.flush();
    return this.rest;
  }

  /** Up to the list of series, or to the end of the chunk. */
  private outside(chunk: Uint8Array, from: number): number {
    for (let i = from; i < chunk.length; i++) {
      const b = chunk[i]!;
      if (this.inString) {
        if (this.escaped) this.escaped = false;
        else if (b === BACKSLASH) this.escaped = true;
        else if (b === QUOTE) this.inString = false;
      } else if (b === QUOTE) this.inString = true;
      else if (b === CLOSE || b === CLOSE_LIST) this.depth--;
      else if (b === OPEN || b === OPEN_LIST) {
        this.depth++;
        if (b === OPEN_LIST && this.depth === 3) {
          this.rest += this.decoder.decode(chunk.subarray(from, i + 1), { stream: true });
          if (/"result"\s*:\s*\[$/.test(this.rest)) { this.inResult = true; return i + 1; }
          from = i + 1;
        }
      }
    }
    this.rest += this.decoder.decode(chunk.subarray(from), { stream: true });
    if (this.rest.length > REST_MAX) throw new ScanError("The response is larger than the page can hold");
    return chunk.length;
  }

  /** Within the list of series: one series, what is between two, or the list's end. */
  private series(chunk: Uint8Array, from: number): number {
    let { depth, inString, escaped } = this;
    let start = depth > 3 ? from : -1;
    for (let i = from; i < chunk.length; i++) {
      const b = chunk[i]!;
      if (inString) {
        if (escaped) escaped = false;
        else if (b === QUOTE) inString = false;
        else if (b === BACKSLASH) escaped = true;
      } else if (b === QUOTE) inString = true;
      else if (b === OPEN || b === OPEN_LIST) { if (depth++ === 3) start = i; }
      else if (b === CLOSE || b === CLOSE_LIST) {
        depth--;
        if (depth === 2) { this.leaveResult(); return i; }
        if (depth === 3) { this.whole(chunk.subarray(start, i + 1)); start = -1; }
      }
    }
    if (start >= 0) this.hold(chunk.subarray(start));
    Object.assign(this, { depth, inString, escaped });
    return chunk.length;
  }

  /** The list's end is read once more, as what is outside of it. */
  private leaveResult(): void {
    Object.assign(this, { depth: 3, inString: false, escaped: false, inResult: false });
  }

  private hold(part: Uint8Array): void {
    this.heldBytes += part.length;
    if (this.heldBytes > SERIES_BYTES_MAX) throw new ScanError("One series of the response is larger than the page can hold");
    this.held.push(part.slice());
  }

  private whole(last: Uint8Array): void {
    this.bytes = last;
    if (this.held.length > 0) {
      this.bytes = new Uint8Array(this.heldBytes + last.length);
      let to = 0;
      for (const part of [...this.held, last]) { this.bytes.set(part, to); to += part.length; }
      this.held = [];
      this.heldBytes = 0;
    }
    this.at = 0;
    this.one();
  }

  private one(): void {
    const column = this.rows.next();
    let labels: Labels = {};
    let undrawable = 0;
    let native: NativeSample[] | null = null;
    this.expect(OPEN);
    while (this.peek() !== CLOSE) {
      const key = this.json<string>();
      this.expect(COLON);
      if (key === "metric") labels = this.json<Labels>();
      else if (key === "values") undrawable += this.samples(column);
      else if (key === "histograms") native = this.json<NativeSample[]>();
      else this.skip();
      if (this.peek() === COMMA) this.at++;
    }
    for (const [t, h] of native ?? []) undrawable += this.rows.place(column, t * 1000, parseSample(h.count));
    this.rows.add(labels, column, undrawable, native);
  }

  private samples(column: Float64Array): number {
    let undrawable = 0;
    this.expect(OPEN_LIST);
    while (this.peek() === OPEN_LIST) {
      this.at++;
      const t = this.number();
      this.expect(COMMA);
      this.expect(QUOTE);
      const v = this.number();
      this.expect(QUOTE);
      this.expect(CLOSE_LIST);
      undrawable += this.rows.place(column, t * 1000, v);
      if (this.peek() === COMMA) this.at++;
    }
    this.expect(CLOSE_LIST);
    return undrawable;
  }

  /** A number up to a quote, a comma or an end. Up to 15 digits and 22 decimals are exact in a float; others take the long way. */
  private number(): number {
    const { bytes } = this;
    const from = this.at;
    let [i, digits, decimals, mantissa] = [from, 0, 0, 0];
    const negative = bytes[i] === 45;
    if (negative) i++;
    const first = i;
    let point = false;
    for (; ; i++) {
      const b = bytes[i]!;
      if (b >= 48 && b <= 57) {
        mantissa = mantissa * 10 + b - 48;
        if (mantissa > 0) digits++;
        if (point) decimals++;
      } else if (b === 46 && !point) point = true;
      else break;
    }
    const b = bytes[i];
    const ended = b === QUOTE || b === COMMA || b === CLOSE_LIST;
    if (ended && i - first > Number(point) && digits <= 15 && decimals < POWERS.length) {
      this.at = i;
      const v = decimals === 0 ? mantissa : mantissa / POWERS[decimals]!;
      return negative ? -v : v;
    }
    while (i < bytes.length && bytes[i] !== QUOTE && bytes[i] !== COMMA && bytes[i] !== CLOSE_LIST) i++;
    this.at = i;
    const text = ASCII.decode(bytes.subarray(from, i)).trim();
    const v = parseSample(text);
    if (text === "" || (Number.isNaN(v) && text !== "NaN")) throw new ScanError(`The response has "${text.slice(0, 40)}" where a number should be`);
    return v;
  }

  private peek(): number {
    const { bytes } = this;
    while (bytes[this.at]! <= 32) this.at++;
    return bytes[this.at] ?? -1;
  }

  private expect(b: number): void {
    if (this.peek() !== b) throw unlike();
    this.at++;
  }

  private json<T>(): T {
    this.peek();
    const from = this.at;
    this.skip();
    try {
      return JSON.parse(new TextDecoder().decode(this.bytes.subarray(from, this.at))) as T;
    } catch {
      throw new ScanError("The response is not JSON");
    }
  }

  /** Past one value of any kind. */
  private skip(): void {
    const { bytes } = this;
    let depth = 0;
    for (this.peek(); this.at < bytes.length; this.at++) {
      const b = bytes[this.at]!;
      if (b === QUOTE) {
        for (this.at++; this.at < bytes.length && bytes[this.at] !== QUOTE; this.at++) if (bytes[this.at] === BACKSLASH) this.at++;
        if (depth === 0) { this.at++; return; }
      } else if (b === OPEN || b === OPEN_LIST) depth++;
      else if (b === CLOSE || b === CLOSE_LIST) {
        if (depth === 0) return;
        if (--depth === 0) { this.at++; return; }
      } else if (b === COMMA && depth === 0) return;
    }
  }
}
