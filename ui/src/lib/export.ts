// A panel as something else: CSV, a command, a panel of Grafana, a link with absolute times.
import { formatDuration } from "./duration.ts";
import { seriesText } from "./labels.ts";
import type { MatrixSeries } from "./matrix.ts";
import { formatState, type QueryState } from "./urlstate.ts";

type Data =
  | { resultType: "vector"; result: { metric: Readonly<Record<string, string>>; value?: [number, string] }[] }
  | { resultType: "matrix"; result: MatrixSeries[] }
  | { resultType: "scalar" | "string"; result: [number, string] };

const iso = (seconds: number): string => new Date(Math.round(seconds * 1000)).toISOString();

/** RFC 4180, and a text that a spreadsheet would evaluate begins with an apostrophe. */
function cell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^[+-]?(\d|Inf)/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

/** One row a sample: series, time, value. Histograms are left out: they have no one value. */
export function toCSV(data: Data): string {
  const rows: string[][] = [["series", "time", "value"]];
  if (data.resultType === "vector") for (const s of data.result) { if (s.value) rows.push([seriesText(s.metric), iso(s.value[0]), s.value[1]]); }
  else if (data.resultType === "matrix") for (const s of data.result) for (const [t, v] of s.values ?? []) rows.push([seriesText(s.metric), iso(t), v]);
  else rows.push(["", iso(data.result[0]), data.result[1]]);
  return `${rows.map((r) => r.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** One word of a POSIX shell. */
export const shellWord = (text: string): string => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);

export function toCurl(url: string, params: Readonly<Record<string, string | number | readonly string[] | undefined>>, headers: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(params).flatMap(([k, v]) => (v === undefined ? [] : (Array.isArray(v) ? v : [v]).map((one) => `${k}=${String(one)}`)));
  const heads = Object.entries(headers).map(([k, v]) => `-H ${shellWord(`${k}: ${v}`)}`);
  return ["curl -fsS -G", ...heads, ...pairs.map((p) => `--data-urlencode ${shellWord(p)}`), shellWord(url)].join(" \\\n  ");
}

/** The address of the server's own file of raw samples. */
export function exportURL(base: string, selectors: readonly string[], startMS: number, endMS: number, format: string): string {
  const q = new URLSearchParams([...selectors.map((s) => ["match[]", s]), ["start", String(startMS / 1000)], ["end", String(endMS / 1000)], ["format", format]]);
  return `${base}api/v1/export?${q}`;
}

/** `ferula read` takes a selector: the raw samples of the query's first one, as a Parquet file. */
export function toRead(base: string, selector: string, startMS: number, endMS: number, headers: Readonly<Record<string, string>> = {}): string {
  const heads = Object.entries(headers).map(([k, v]) => `--header ${shellWord(`${k}: ${v}`)}`);
  return ["ferula read", `--url ${shellWord(base)}`, ...heads, `--match ${shellWord(selector)}`, `--start ${iso(startMS / 1000)}`, `--end ${iso(endMS / 1000)}`, "-o out.parquet"].join(" \\\n  ");
}

export function toGrafanaPanel(s: { expr: string; tab: string; stacked: boolean; title: string; stepMS: number | null }): string {
  return JSON.stringify({
    type: s.tab === "table" ? "table" : "timeseries", title: s.title,
    targets: [{ refId: "A", expr: s.expr, instant: s.tab === "table", range: s.tab !== "table", ...(s.stepMS === null ? {} : { interval: formatDuration(s.stepMS) }) }],
    fieldConfig: { defaults: { custom: { stacking: { mode: s.stacked ? "normal" : "none" } } }, overrides: [] },
    gridPos: { h: 8, w: 12, x: 0, y: 0 },
  }, null, 2);
}

/** The same view wherever and whenever it is opened: the end is a time, and nothing refreshes. */
export function absoluteState(s: QueryState, now: number): string {
  return formatState({ ...s, endMS: s.endMS ?? Math.floor(now / 1000) * 1000, refreshMS: 0 });
}
