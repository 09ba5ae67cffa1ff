// Reads a range query's response as columns (docs/formats/columns.md) while it arrives. Input and output are those of MatrixScan. A
// section is read once all of it has arrived: a length that a response states is compared with what is there, and nothing is
// allocated for it. Numbers are little-endian, as those of every machine with a browser.
import type { Labels } from "./labels.ts";
import { REST_MAX, Rows, ScanError, SERIES_BYTES_MAX, unlike, type Batch } from "./rows.ts";
import type { Grid } from "./step.ts";

const MAGIC = "FERULAC1";
const [GRID, SERIES, TEXT, END] = [1, 2, 3, 4];
/** The bytes of a section with `n` bytes of content. */
const padded = (n: number): number => Math.ceil(n / 8) * 8;

export class ColumnScan {
  private readonly rows: Rows;
  private rest = "";
  private readonly decoder = new TextDecoder();
  /** What has arrived of a section, and how many bytes are needed to go on. */
  private held: Uint8Array[] = [];
  private heldBytes = 0;
  private need = MAGIC.length;
  /** The kind of the section before; 0 after the magic bytes, -1 before them. */
  private last = -1;
  private start = 0;
  private step = 0;
  private steps = 0;
  private series = 0;
  private samples = 0;

  constructor(grid: Grid, emit: (b: Batch) => void) {
    this.rows = new Rows(grid, emit);
  }

  /** Reads one chunk, which it does not keep. */
  write(chunk: Uint8Array): void {
    if (this.heldBytes + chunk.length < this.need) {
      this.hold(chunk.slice());
      return;
    }
    const bytes = this.joined(chunk);
    let at = 0;
    while (at + this.need <= bytes.length) {
      if (this.last < 0) {
        if (new TextDecoder().decode(bytes.subarray(0, MAGIC.length)) !== MAGIC) throw unlike();
        this.last = 0;
        at = MAGIC.length;
        this.need = 8;
        continue;
      }
      const head = new DataView(bytes.buffer, bytes.byteOffset + at, 8);
      const [kind, length] = [head.getUint32(0, true), head.getUint32(4, true)];
      // The server cuts texts into sections of a few buffers, so one that reaches the limit of all texts is a lie.
      if (length > (kind === SERIES ? SERIES_BYTES_MAX : REST_MAX - this.rest.length)) throw new ScanError("One section of the response is larger than the page can hold");
      this.need = 8 + padded(length);
      if (at + this.need > bytes.length) break;
      this.section(kind, bytes.subarray(at + 8, at + 8 + length));
      at += this.need;
      this.need = 8;
    }
    if (at < bytes.length) this.hold(bytes.slice(at));
  }

  /** The body with an empty list in place of its series. */
  end(): string {
    if (this.last !== END || this.heldBytes > 0) throw new ScanError("The response ended before it was complete.");
    this.rest += this.decoder.decode();
    this.rows.flush();
    return this.rest;
  }

  private hold(part: Uint8Array): void {
    this.heldBytes += part.length;
    this.held.push(part);
  }

  /** What was held and the chunk, at a place where numbers of 8 bytes may be. */
  private joined(chunk: Uint8Array): Uint8Array {
    if (this.heldBytes === 0) return chunk.byteOffset % 8 === 0 ? chunk : chunk.slice();
    const bytes = new Uint8Array(this.heldBytes + chunk.length);
    let to = 0;
    for (const part of [...this.held, chunk]) { bytes.set(part, to); to += part.length; }
    this.held = [];
    this.heldBytes = 0;
    return bytes;
  }

  /** Grid, series, text, end: in this order, and only series and text more than once. */
  private section(kind: number, bytes: Uint8Array): void {
    const { last } = this;
    if (kind < last || kind > END || (last === 0 && kind !== GRID) || (kind === last && kind !== SERIES && kind !== TEXT)) throw unlike();
    this.last = kind;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const wide = (at: number) => Number(view.getBigInt64(at, true));
    if (kind === SERIES) this.read(bytes, view);
    else if (kind === TEXT) {
      this.rest += this.decoder.decode(bytes, { stream: true });
      if (this.rest.length > REST_MAX) throw new ScanError("The response is larger than the page can hold");
    } else if (bytes.length !== (kind === GRID ? 24 : 16)) throw unlike();
    else if (kind === GRID) {
      [this.start, this.step, this.steps] = [wide(0), wide(8), view.getUint32(16, true)];
    } else if (last !== TEXT || wide(0) !== this.series || wide(8) !== this.samples) throw unlike();
  }

  private read(bytes: Uint8Array, view: DataView): void {
    if (bytes.length < 16) throw unlike();
    const [series, runs, samples, text] = [0, 4, 8, 12].map((at) => view.getUint32(at, true)) as [number, number, number, number];
    const countsAt = padded(16 + text);
    const valuesAt = padded(countsAt + 4 * series + 8 * runs);
    if (valuesAt + 8 * samples !== bytes.length) throw unlike();
    const labels = labelSets(bytes.subarray(16, 16 + text));
    if (labels.length !== series) throw unlike();
    const counts = new Uint32Array(bytes.buffer, bytes.byteOffset + countsAt, series + 2 * runs);
    const values = new Float64Array(bytes.buffer, bytes.byteOffset + valuesAt, samples);
    let [run, sample] = [series, 0];
    for (let s = 0; s < series; s++) {
      const column = this.rows.next();
      let [undrawable, next] = [0, 0];
      const end = run + 2 * counts[s]!;
      if (end > counts.length) throw unlike();
      for (; run < end; run += 2) {
        const [first, n] = [counts[run]!, counts[run + 1]!];
        if (first < next || n === 0 || first + n > this.steps || sample + n > samples) throw unlike();
        next = first + n;
        for (let i = first; i < next; i++, sample++) undrawable += this.rows.place(column, this.start + i * this.step, values[sample]!);
      }
      this.rows.add(labels[s]!, column, undrawable, null);
    }
    if (run !== counts.length || sample !== samples) throw unlike();
    this.series += series;
    this.samples += samples;
  }
}

function labelSets(json: Uint8Array): Labels[] {
  try {
    const sets = JSON.parse(new TextDecoder().decode(json)) as unknown;
    if (Array.isArray(sets)) return sets as Labels[];
  } catch {
    // no JSON
  }
  throw unlike();
}
