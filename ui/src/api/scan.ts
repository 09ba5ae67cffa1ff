// Passes the bytes of a range query's response, while they arrive, to a worker that scans them. If the browser or the policy of a
// proxy allows no worker, the same scan runs on the main thread, in pieces between which the page can draw.
import type { Matrix } from "../lib/matrix.ts";
import { FIGURES, type NativeSample } from "../lib/matrix.ts";
import type { Batch } from "../lib/rows.ts";
import { gridLength, type Grid } from "../lib/step.ts";

/** To the worker: what becomes of the request `id`. */
export type ToWorker =
  | { id: number; kind: "begin"; grid: Grid; columns: boolean }
  | { id: number; kind: "chunk"; bytes: Uint8Array<ArrayBuffer> }
  | { id: number; kind: "end" | "drop" };

/** From the worker. The first message, without a request, is that it runs. */
export type FromWorker =
  | { id: number; kind: "batch"; batch: Batch }
  | { id: number; kind: "taken"; bytes: number }
  | { id: number; kind: "end"; rest: string }
  | { id: number; kind: "failed"; message: string }
  | { kind: "ready" };

export interface Scanned { matrix: Matrix; /** The body with an empty list in place of the series. */ rest: string }

/** What reads one response: a MatrixScan its JSON, a ColumnScan its columns. */
export interface Scan { write(chunk: Uint8Array): void; end(): string }

/** The media type of columns, which the server sends if a request accepts it: docs/formats/columns.md. */
export const COLUMNS = "application/vnd.ferula.columns.v1";

/** Bytes that may wait in the worker: a fast network must not fill the memory with what is not scanned yet. */
const AHEAD_MAX = 8 << 20;
/** A worker that takes longer to start is not waited for. */
const START_MS_MAX = 10_000;

/** One response on its way. What its scan fails with comes out of write or end. */
export interface Sink {
  write(chunk: Uint8Array<ArrayBuffer>): Promise<void>;
  end(): Promise<Scanned>;
  /** The response is not wanted any more, or has ended. */
  close(): void;
}

/** Batches put together. The arrays of values stay as they came, and columns are views of them. */
class Collector {
  private readonly n: number;
  private readonly matrix: Matrix & { native: Map<number, NativeSample[]> } = { labels: [], names: [], values: [], figures: new Float64Array(), native: new Map() };
  private readonly figures: Float64Array[] = [];

  constructor(grid: Grid) {
    this.n = gridLength(grid);
  }

  add({ labels, names, values, figures, native }: Batch): void {
    const m = this.matrix;
    for (const [row, samples] of native) m.native.set(m.names.length + row, samples);
    for (let i = 0; i < names.length; i++) {
      m.labels.push(labels[i]!);
      m.names.push(names[i]!);
      m.values.push(values.subarray(i * this.n, (i + 1) * this.n));
    }
    this.figures.push(figures);
  }

  whole(): Matrix {
    const figures = new Float64Array(this.matrix.names.length * FIGURES);
    let at = 0;
    for (const f of this.figures) { figures.set(f, at); at += f.length; }
    return { ...this.matrix, figures };
  }
}

export class Scanner {
  private worker: Worker | null = null;
  private started: Promise<boolean> | null = null;
  private readonly sinks = new Map<number, WorkerSink>();
  private next = 1;
  private readonly make: () => Worker;

  constructor(make: () => Worker = () => new Worker(new URL("./scan.worker.ts", import.meta.url), { type: "module" })) {
    this.make = make;
  }

  /** Starts the worker; called before a request is sent, so that it starts while the server evaluates. */
  prepare(): Promise<boolean> {
    return (this.started ??= this.start());
  }

  async open(grid: Grid, columns: boolean): Promise<Sink> {
    if (!(await this.prepare()) || !this.worker) {
      const make = columns ? (await import("../lib/columnscan.ts")).ColumnScan : (await import("../lib/matrixscan.ts")).MatrixScan;
      return new LocalSink(grid, (emit) => new make(grid, emit));
    }
    const id = this.next++;
    const sink = new WorkerSink(id, grid, columns, this.worker, () => this.sinks.delete(id));
    this.sinks.set(id, sink);
    return sink;
  }

  private start(): Promise<boolean> {
    let worker: Worker;
    try {
      worker = this.make();
    } catch {
      return Promise.resolve(false);
    }
    return new Promise((done) => {
      const give = (running: boolean) => { clearTimeout(timer); done(running); };
      const timer = setTimeout(() => { worker.terminate(); give(false); }, START_MS_MAX);
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if (data.kind !== "ready") { this.sinks.get(data.id)?.take(data); return; }
        this.worker = worker;
        give(true);
      };
      // The worker did not load, or it died: further responses are scanned on the main thread.
      worker.onerror = (e) => {
        e.preventDefault();
        worker.terminate();
        this.worker = null;
        give(false);
        for (const s of this.sinks.values()) s.fail("The worker that reads responses has ended");
      };
    });
  }
}

class WorkerSink implements Sink {
  private readonly id: number;
  private readonly worker: Worker;
  private readonly collected: Collector;
  private readonly gone: () => void;
  private waiting = 0;
  private failure: Error | null = null;
  private room: (() => void) | null = null;
  private rest: string | null = null;

  constructor(id: number, grid: Grid, columns: boolean, worker: Worker, gone: () => void) {
    this.id = id;
    this.worker = worker;
    this.gone = gone;
    this.collected = new Collector(grid);
    this.send({ id, kind: "begin", grid, columns });
  }

  async write(chunk: Uint8Array<ArrayBuffer>): Promise<void> {
    this.waiting += chunk.byteLength;
    // The buffer of a view cannot be transferred, because other views use it.
    const bytes = chunk.byteLength === chunk.buffer.byteLength ? chunk : chunk.slice();
    this.send({ id: this.id, kind: "chunk", bytes }, [bytes.buffer]);
    await this.until(() => this.waiting <= AHEAD_MAX);
  }

  async end(): Promise<Scanned> {
    this.send({ id: this.id, kind: "end" });
    await this.until(() => this.rest !== null);
    return { matrix: this.collected.whole(), rest: this.rest! };
  }

  close(): void {
    this.gone();
    this.send({ id: this.id, kind: "drop" });
    this.room?.();
  }

  take(m: Exclude<FromWorker, { kind: "ready" }>): void {
    if (m.kind === "batch") this.collected.add(m.batch);
    else if (m.kind === "taken") this.waiting -= m.bytes;
    else if (m.kind === "end") this.rest = m.rest;
    else this.fail(m.message);
    this.room?.();
  }

  fail(message: string): void {
    this.failure = new Error(message);
    this.room?.();
  }

  private async until(done: () => boolean): Promise<void> {
    while (!this.failure && !done()) await new Promise<void>((wake) => { this.room = wake; });
    if (this.failure) throw this.failure;
  }

  private send(m: ToWorker, transfer: Transferable[] = []): void {
    this.worker.postMessage(m, transfer);
  }
}

/** Bytes that are scanned on the main thread without a pause. */
const PIECE = 128 << 10;

class LocalSink implements Sink {
  private readonly scan: Scan;
  private readonly collected: Collector;

  constructor(grid: Grid, make: (emit: (b: Batch) => void) => Scan) {
    this.collected = new Collector(grid);
    this.scan = make((b) => this.collected.add(b));
  }

  async write(chunk: Uint8Array<ArrayBuffer>): Promise<void> {
    for (let i = 0; i < chunk.length; i += PIECE) {
      if (i > 0) await new Promise((wake) => setTimeout(wake));
      this.scan.write(chunk.subarray(i, i + PIECE));
    }
  }

  async end(): Promise<Scanned> {
    const rest = this.scan.end();
    return { matrix: this.collected.whole(), rest };
  }

  close(): void {
    // What it holds goes with it.
  }
}
