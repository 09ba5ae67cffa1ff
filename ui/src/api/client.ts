// The HTTP client of the page; no other code sends requests. Input: a path under /api/v1 and its parameters. Output: the
// decoded response with its cost, or an error of one of three kinds. The client also records whether the server can
// be reached, for all pages. It never repeats a request.
import { probeDelayMS, RefreshGate } from "../lib/backoff.ts";
import type { Analysis, QueryStats } from "../lib/cost.ts";
import type { Matrix } from "../lib/matrix.ts";
import type { Grid } from "../lib/step.ts";
import { COLUMNS, Scanner, type Scanned, type Sink } from "./scan.ts";

/** An error response: the query is wrong, too large, or timed out. */
export class APIError extends Error {
  readonly type: string;
  readonly status: number;
  constructor(message: string, type: string, status: number) {
    super(message);
    this.type = type;
    this.status = status;
  }
}

/** No response of the server: the connection failed, a proxy responded for it, or it is not ready yet. */
export class UnavailableError extends Error {
  /** How long the request took before it failed. */
  readonly ms: number;
  constructor(message: string, ms: number) {
    super(message);
    this.ms = ms;
  }
}

export interface APIResult<T> { data: T; warnings: string[]; infos: string[]; ms: number; bytes: number; cost: Cost }

/** Headers of a response about its evaluation; "" if the server does not send one. */
export interface Cost {
  /** The header Server-Timing. */
  timing: string;
  /** What a query frontend found in its cache: "hit", "miss", "partial". */
  cache: string;
  /** The engine that evaluated the query. */
  engine: string;
}

/** The result of a range query, on the grid of its steps. */
export interface RangeData { resultType: "range"; matrix: Matrix; stats?: QueryStats; analysis?: Analysis }

/** The type of an APIError whose response cannot be read. */
const BAD_RESPONSE = "bad_response";

/** The type of an APIError after which only signing in again helps. */
export const SIGNED_OUT = "signed_out";

export type Health =
  | { state: "ok" }
  | { state: "unreachable" }
  | { state: "starting"; done: number; total: number };

export type Params = Record<string, string | number | readonly string[] | undefined>;

interface Envelope<T> { status: string; data?: T; error?: string; errorType?: string; warnings?: string[]; infos?: string[] }

/** Clocks further apart than this show the newest samples in the wrong place. */
const SKEW_MAX_MS = 30_000;

/** Longer queries go in a body: proxies and servers cut addresses off at 8 KiB or so. */
const GET_CHARS_MAX = 4000;

type Init = Omit<RequestInit, "headers"> & { signal: AbortSignal; headers?: Record<string, string> };

export class Server {
  /** Ends with a slash. The page is one level below it, whatever prefix a proxy puts in front. */
  readonly base: string;
  health: Health = { state: "ok" };
  /** Counts returns from an outage that /-/ready has shown; what failed during it is sent again when this changes. */
  epoch = 0;
  /** What automatic refresh has to pass. */
  readonly refreshGate: RefreshGate;
  /** How far the server's clock is ahead of the browser's, as of the last response; 0 while that is within the limit. */
  skewMS = 0;
  /** Sent as X-Scope-OrgID and THANOS-TENANT; "" sends none. */
  tenant = "";
  private listeners = new Set<() => void>();
  private probing = false;
  private readonly scanner: Scanner;

  constructor(base: string, refreshGate: RefreshGate = new RefreshGate(), scanner: Scanner = new Scanner()) {
    this.base = base;
    this.refreshGate = refreshGate;
    this.scanner = scanner;
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Sends a GET for `path` below /api/v1. The signal's abort comes out as a DOMException named AbortError, as fetch throws it. */
  async get<T>(path: string, params: Params, signal: AbortSignal): Promise<APIResult<T>> {
    const began = performance.now();
    return this.send(`api/v1/${path}`, params, signal, (response, body) => {
      const ms = performance.now() - began;
      return resultOf(response, decode<T>(response, new TextDecoder().decode(body)), ms, body.byteLength);
    });
  }

  /** Sends a POST without a body to `path` below /api/v1. */
  async post<T>(path: string): Promise<APIResult<T>> {
    const began = performance.now();
    return this.fetched(`${this.base}api/v1/${path}`, { method: "POST", signal: new AbortController().signal }, (response, body) =>
      resultOf(response, decode<T>(response, new TextDecoder().decode(body)), performance.now() - began, body.byteLength));
  }

  /** A range query. Its response, columns or JSON, is scanned while it arrives: `params` has start, end and step in seconds. */
  async range(params: Params, signal: AbortSignal): Promise<APIResult<RangeData>> {
    const began = performance.now();
    void this.scanner.prepare();
    let bytes = 0;
    let scanned: Scanned | null = null;
    const take: Take = async (part, type) => {
      const sink = await this.scanner.open(gridOf(params), type === COLUMNS);
      try {
        scanned = await pour(part, sink, (n) => { bytes += n; });
      } finally {
        sink.close();
      }
    };
    return this.send("api/v1/query_range", params, signal, (response, body) => {
      const ms = performance.now() - began;
      const { rest, matrix } = (scanned as Scanned | null) ?? { rest: new TextDecoder().decode(body), matrix: null };
      const envelope = decode<object>(response, rest);
      if (matrix === null) throw new APIError("The response is not what a range query returns", BAD_RESPONSE, response.status);
      return resultOf(response, { ...envelope, data: { ...envelope.data, resultType: "range", matrix } }, ms, bytes);
    }, take);
  }

  /** Calls a method of the profile API (Connect, JSON). `method` is "querier.v1.QuerierService/SelectSeries". */
  async call<T>(method: string, message: object, signal: AbortSignal): Promise<APIResult<T>> {
    const began = performance.now();
    const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(message), signal };
    return this.fetched(this.base + method, init, (response, body) => {
      const ms = performance.now() - began;
      return { data: decodeConnect<T>(response, body), warnings: partial(response), infos: [], ms, bytes: body.byteLength, cost: costOf(response) };
    });
  }

  /** The same in protobuf; the response is returned as a file. */
  async callFile(method: string, message: Uint8Array<ArrayBuffer>, signal: AbortSignal): Promise<Blob> {
    const init = { method: "POST", headers: { "Content-Type": "application/proto" }, body: message, signal };
    return this.fetched(this.base + method, init, (response, body) => {
      if (!response.ok) decodeConnect(response, body);
      return new Blob([body], { type: "application/octet-stream" });
    });
  }

  private send<T>(path: string, params: Params, signal: AbortSignal, use: (response: Response, body: ArrayBuffer) => T, take?: Take): Promise<T> {
    const q = new URLSearchParams();
    for (const [k, v] of Object.entries(params)) {
      if (Array.isArray(v)) v.forEach((one) => q.append(k, one));
      else if (v !== undefined) q.set(k, String(v));
    }
    const query = q.toString();
    const long = query.length > GET_CHARS_MAX;
    const url = this.base + path + (query === "" || long ? "" : `?${query}`);
    const headers: Record<string, string> = take ? { Accept: `${COLUMNS}, application/json` } : {};
    return this.fetched(url, long ? { method: "POST", body: q, signal, headers } : { signal, headers }, use, take);
  }

  /** `use` decodes the response: what it finds broken is a failure, after which automatic refresh pauses. */
  private async fetched<T>(url: string, init: Init, use: (response: Response, body: ArrayBuffer) => T, take?: Take): Promise<T> {
    const began = performance.now();
    this.refreshGate.begin();
    let failed = false;
    try {
      // A proxy in front responds to an expired session with a redirect to its sign-in page, on another host mostly.
      const response = await fetch(url, { ...init, redirect: "manual", headers: { ...init.headers, ...this.tenantHeaders() } });
      if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
        failed = true;
        throw new APIError("A proxy in front of the server redirects to another page, as it does when a session has expired.", SIGNED_OUT, response.status);
      }
      const body = await readBody(response, began, take);
      this.noteClock(response);
      failed = isServerFailure(response, body);
      const gateway = response.status === 502 || response.status === 503 || response.status === 504;
      // A response with an error type comes from the server itself, whatever its status, so the server can be reached.
      if (gateway && !isTyped(body)) throw unavailable(response, performance.now() - began);
      return use(response, body);
    } catch (e) {
      if (init.signal.aborted) throw e;
      if (e instanceof APIError) {
        failed ||= e.type === BAD_RESPONSE;
        throw e;
      }
      failed = true;
      this.suspect();
      throw e instanceof UnavailableError ? e : new UnavailableError("The connection to the server failed", performance.now() - began);
    } finally {
      this.refreshGate.end(failed && !init.signal.aborted);
    }
  }

  tenantHeaders(): Record<string, string> {
    return this.tenant === "" ? {} : { "X-Scope-OrgID": this.tenant, "THANOS-TENANT": this.tenant };
  }

  /** Date has whole seconds: the server's clock is up to one second ahead of it. */
  private noteClock(response: Response): void {
    const date = Date.parse(response.headers.get("Date") ?? "");
    if (Number.isNaN(date)) return;
    const off = date + 500 - Date.now();
    const skew = Math.abs(off) > SKEW_MAX_MS ? off : 0;
    if ((skew === 0) === (this.skewMS === 0)) return;
    this.skewMS = skew;
    this.listeners.forEach((l) => l());
  }

  /** Starts a look at the server's readiness after a request without a response. */
  private suspect(): void {
    if (this.probing) return;
    this.probing = true;
    void this.probe();
  }

  /** Probes until the server is ready. Only a server that was seen to be away comes back, so only then the epoch changes. */
  private async probe(): Promise<void> {
    let away = false;
    for (let attempt = 0; ; attempt++) {
      const health = await this.check();
      if (health.state === "ok") {
        if (away) this.epoch++;
      } else {
        if (health.state !== this.health.state) attempt = 0;
        away = true;
      }
      const changed = away || this.health.state !== "ok";
      this.health = health;
      if (changed) this.listeners.forEach((l) => l());
      if (health.state === "ok") break;
      await new Promise((wake) => setTimeout(wake, probeDelayMS(attempt)));
    }
    this.probing = false;
  }

  private async check(): Promise<Health> {
    try {
      const ready = await fetch(`${this.base}-/ready`);
      if (ready.ok) return { state: "ok" };
      if (ready.status !== 503) return { state: "unreachable" };
    } catch {
      return { state: "unreachable" };
    }
    return this.replay();
  }

  /** Progress of the WAL replay, where the server reports it. */
  private async replay(): Promise<Health> {
    try {
      const r = await fetch(`${this.base}api/v1/status/walreplay`);
      const body = (await r.json()) as { data?: { min: number; max: number; current: number } };
      const { min = 0, max = 0, current = 0 } = body.data ?? {};
      return { state: "starting", done: Math.max(0, current - min), total: Math.max(0, max - min) };
    } catch {
      return { state: "starting", done: 0, total: 0 };
    }
  }
}

/** Statuses after which automatic refresh pauses: the same request would most likely fail again. */
function isServerFailure(response: Response, body: ArrayBuffer): boolean {
  const { status } = response;
  if (status >= 500 || status === 401 || status === 403 || status === 413 || status === 429) return true;
  // Responses of other programs, such as the page of a proxy, have no error type.
  return status >= 400 ? !isTyped(body) : (response.headers.get("Content-Type") ?? "").startsWith("text/html");
}

/** Reads a body of one of TAKEN as it arrives. */
type Take = (part: ReadableStream<Uint8Array<ArrayBuffer>>, type: string) => Promise<void>;
const TAKEN: readonly string[] = ["application/json", COLUMNS];

/** A good response of the API goes to `take`, if that is there; any other is read as a whole. */
async function readBody(response: Response, began: number, take?: Take): Promise<ArrayBuffer> {
  try {
    const type = (response.headers.get("Content-Type") ?? "").split(";")[0]!.trim().toLowerCase();
    if (!take || !response.ok || !response.body || !TAKEN.includes(type)) return await response.arrayBuffer();
    await take(response.body, type);
    return new ArrayBuffer();
  } catch (e) {
    if (e instanceof APIError || (e instanceof DOMException && e.name === "AbortError")) throw e;
    throw new UnavailableError("The response ended before it was complete", performance.now() - began);
  }
}

/** Errors of the scan are the response's, not the connection's. */
async function pour(from: ReadableStream<Uint8Array<ArrayBuffer>>, sink: Sink, count: (bytes: number) => void): Promise<Scanned> {
  const reader = from.getReader();
  const scanned = <T>(step: Promise<T>) => step.catch((e: Error): never => { throw new APIError(e.message, BAD_RESPONSE, 200); });
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return await scanned(sink.end());
      count(value.byteLength);
      await scanned(sink.write(value));
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

function gridOf(params: Params): Grid {
  const ms = (name: string) => Math.round(Number(params[name]) * 1000);
  return { start: ms("start"), end: ms("end"), step: ms("step") };
}

function resultOf<T>(response: Response, e: Envelope<T>, ms: number, bytes: number): APIResult<T> {
  return { data: e.data as T, warnings: e.warnings ?? [], infos: e.infos ?? [], ms, bytes, cost: costOf(response) };
}

function costOf({ headers }: Response): Cost {
  return {
    timing: headers.get("Server-Timing") ?? "",
    cache: headers.get("X-Ferula-Cache") ?? "",
    engine: headers.get("X-Ferula-Query-Engine") ?? "",
  };
}

function unavailable(response: Response, ms: number): UnavailableError {
  const text = response.status === 503 ? "The server is not ready (status 503)" : `A proxy gave up waiting for the server (status ${response.status})`;
  return new UnavailableError(text, ms);
}

function isTyped(body: ArrayBuffer): boolean {
  const head = new TextDecoder().decode(body.slice(0, 512));
  return head.includes('"errorType"') || head.includes('"code"');
}

function decode<T>(response: Response, text: string): Envelope<T> {
  let envelope: Envelope<T>;
  try {
    envelope = JSON.parse(text) as Envelope<T>;
  } catch {
    if (/^\s*\{"status"/.test(text)) throw new APIError("The response ended before it was complete.", BAD_RESPONSE, response.status);
    const hint = /^\s*</.test(text) ? "" : text.trim().slice(0, 200);
    throw new APIError(hint === "" ? `The server returned status ${response.status}` : `${response.status}: ${hint}`, BAD_RESPONSE, response.status);
  }
  if (envelope.status !== "success") {
    throw new APIError(envelope.error ?? `The server returned status ${response.status}`, envelope.errorType ?? "error", response.status);
  }
  return envelope;
}

/** What a response of the profile API lacks, by its header; several reasons are one text then. */
function partial(response: Response): string[] {
  const text = response.headers.get("Ferula-Warning");
  return text === null || text === "" ? [] : [text];
}

/** A server without profiles has none of their paths. */
export const NO_PROFILES = "no_profiles";

function decodeConnect<T>(response: Response, body: ArrayBuffer): T {
  const text = new TextDecoder().decode(body);
  if (response.status === 404 && !text.startsWith("{")) throw new APIError("This server keeps no profiles", NO_PROFILES, 404);
  let message: unknown;
  try {
    message = JSON.parse(text);
  } catch {
    if (response.ok && text.startsWith("{")) throw new APIError("The response ended before it was complete.", BAD_RESPONSE, response.status);
    throw new APIError(`${response.status}: ${text.trim().slice(0, 200)}`, BAD_RESPONSE, response.status);
  }
  if (response.ok) return message as T;
  const { code, message: words } = message as { code?: string; message?: string };
  throw new APIError(words ?? `The server returned status ${response.status}`, code ?? "error", response.status);
}

/** Whether the request failed because it was aborted. */
export const isAbort = (e: unknown): boolean => e instanceof DOMException && e.name === "AbortError";
