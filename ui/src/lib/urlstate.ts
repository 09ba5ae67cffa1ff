// The state of the query page in the address, which links contain and to which "back" returns.
//
//   ?expr=up&tab=table&expr=rate(x[1m])&tab=graph&range=1h&end=2026-01-31T14:00:00Z&step=15s&refresh=5s
//
// Panels repeat expr, tab, stacked, exemplars and view in the same order. view holds how a panel is drawn, as words
// between commas: "zero,cmp:1d,sort:last-". Prometheus' and Thanos' own links (g0.expr=…&g0.range_input=1h) are read too,
// so that a bookmark or an alert's generatorURL opens here unchanged; the first panel's time range then counts for all.
import { formatDuration, parseDuration } from "./duration.ts";
import { parseTime } from "./time.ts";

export type Tab = "graph" | "table" | "explain";
export type Scale = "auto" | "zero" | "log";

export interface PanelView {
  scale: Scale;
  /** Buckets of a histogram as a heat map. */
  heat: boolean;
  /** The same lines so much earlier; 0 compares nothing. */
  compareMS: number;
  /** Marks (seriesMark) of the lines that the legend hides. */
  hidden: readonly string[];
  /** Marks of the only lines that are shown; none: all but the hidden ones. */
  only: readonly string[];
  /** A column of the legend and "+" or "-", as "last-"; "" is the server's order. */
  sort: string;
  /** A column of the table and "+" or "-"; "" is the server's order. */
  tableSort: string;
  /** "" is chosen by the number of labels. */
  layout: "" | "columns" | "text" | "bars";
  /** Whether the server is to count what the query cost. */
  stats: boolean;
  /** All lines, however many there are. */
  all: boolean;
  /** Text of the search in the legend and in the rows of a table. */
  find: string;
  /** Histograms of a table on a linear axis; else on an exponential one. */
  linear: boolean;
}

export interface PanelState extends PanelView { expr: string; tab: Tab; stacked: boolean; exemplars: boolean }

/** What a querier of many stores gets with each query. "" leaves it to the server. */
export interface StoreChoice { dedup: "" | "1" | "0"; partial: "" | "1" | "0"; resolution: string; match: readonly string[] }

export interface QueryState {
  panels: PanelState[];
  rangeMS: number;
  /** null is now. */
  endMS: number | null;
  /** null is chosen by the graph's width. */
  stepMS: number | null;
  /** 0 is off. */
  refreshMS: number;
  stores: StoreChoice;
  tenant: string;
}

export const DEFAULT_RANGE_MS = 3_600_000;
export const PANELS_MAX = 20;
/** Marks of lines in an address. */
export const MARKS_MAX = 200;

export const plainView = (): PanelView =>
  ({ scale: "auto", heat: false, compareMS: 0, hidden: [], only: [], sort: "", tableSort: "", layout: "", stats: false, all: false, find: "", linear: false });

export const emptyPanel = (): PanelState => ({ expr: "", tab: "graph", stacked: false, exemplars: false, ...plainView() });

export const anyStore = (): StoreChoice => ({ dedup: "", partial: "", resolution: "", match: [] });

/** Whether anything of it is not left to the server. */
export const choosesStores = ({ stores, tenant }: QueryState): boolean =>
  stores.dedup !== "" || stores.partial !== "" || stores.resolution !== "" || stores.match.length > 0 || tenant !== "";

export const emptyState = (): QueryState =>
  ({ panels: [emptyPanel()], rangeMS: DEFAULT_RANGE_MS, endMS: null, stepMS: null, refreshMS: 0, stores: anyStore(), tenant: "" });

export function parseState(search: string): QueryState {
  const q = new URLSearchParams(search);
  return q.has("g0.expr") ? parsePrometheus(q) : parseOwn(q);
}

const positive = (text: string | null): number | null => {
  const ms = text === null ? null : parseDuration(text);
  return ms !== null && ms > 0 ? ms : null;
};

const oneOf = <T extends string>(text: string | null | undefined, ...known: T[]): T | "" => known.find((k) => k === text) ?? "";

function parseOwn(q: URLSearchParams): QueryState {
  const [tabs, stacked, exemplars, views] = ["tab", "stacked", "exemplars", "view"].map((name) => q.getAll(name)) as [string[], string[], string[], string[]];
  const panels = q.getAll("expr").slice(0, PANELS_MAX).map((expr, i): PanelState => ({
    expr, tab: oneOf(tabs[i], "table", "explain") || "graph", stacked: stacked[i] === "1", exemplars: exemplars[i] === "1", ...parseView(views[i] ?? ""),
  }));
  return {
    panels: panels.length > 0 ? panels : [emptyPanel()],
    rangeMS: positive(q.get("range")) ?? DEFAULT_RANGE_MS,
    endMS: q.has("end") ? parseTime(q.get("end")!, "utc", Date.now()) : null,
    stepMS: positive(q.get("step")),
    refreshMS: positive(q.get("refresh")) ?? 0,
    stores: { dedup: oneOf(q.get("dedup"), "0", "1"), partial: oneOf(q.get("partial"), "0", "1"), resolution: q.get("resolution") ?? "", match: q.getAll("store") },
    tenant: q.get("tenant") ?? "",
  };
}

const SORT = /^[^+-].*[+-]$/s;

/** Values are escaped as in an address, so that a label's name may hold a comma. */
export function parseView(text: string): PanelView {
  const view = plainView();
  for (const word of text.split(",")) {
    const at = word.indexOf(":");
    const [name, raw] = at < 0 ? [word, ""] : [word.slice(0, at), word.slice(at + 1)];
    const value = unescape(raw);
    if (name === "zero" || name === "log") view.scale = name;
    else if (name === "heat" || name === "stats" || name === "all" || name === "linear") view[name] = true;
    else if (name === "cmp") view.compareMS = positive(value) ?? 0;
    else if (name === "hide") view.hidden = marks(value);
    else if (name === "only") view.only = marks(value);
    else if (name === "sort" && SORT.test(value)) view.sort = value;
    else if (name === "by" && SORT.test(value)) view.tableSort = value;
    else if (name === "as") view.layout = oneOf(value, "columns", "text", "bars");
    else if (name === "find") view.find = value;
  }
  return view;
}

const marks = (text: string): string[] => text.split(".").filter((m) => /^[0-9a-z]+$/.test(m)).slice(0, MARKS_MAX);

function unescape(text: string): string {
  try { return decodeURIComponent(text); } catch { return ""; }
}

export function formatView(v: PanelView): string {
  const words: string[] = [];
  if (v.scale !== "auto") words.push(v.scale);
  if (v.heat) words.push("heat");
  if (v.compareMS > 0) words.push(`cmp:${formatDuration(v.compareMS)}`);
  if (v.hidden.length > 0) words.push(`hide:${v.hidden.slice(0, MARKS_MAX).join(".")}`);
  if (v.only.length > 0) words.push(`only:${v.only.slice(0, MARKS_MAX).join(".")}`);
  if (v.sort !== "") words.push(`sort:${encodeURIComponent(v.sort)}`);
  if (v.tableSort !== "") words.push(`by:${encodeURIComponent(v.tableSort)}`);
  if (v.layout !== "") words.push(`as:${v.layout}`);
  for (const name of ["stats", "all", "linear"] as const) if (v[name]) words.push(name);
  if (v.find !== "") words.push(`find:${encodeURIComponent(v.find)}`);
  return words.join(",");
}

/** A short name of a line for the address: the text of its labels would not fit. */
export function seriesMark(text: string): string {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return (h >>> 0).toString(36);
}

const trueFalse = (text: string | null): "" | "0" | "1" => (text === "1" || text === "true" ? "1" : text === "0" || text === "false" ? "0" : "");

function parsePrometheus(q: URLSearchParams): QueryState {
  const panels: PanelState[] = [];
  for (let i = 0; i < PANELS_MAX && q.has(`g${i}.expr`); i++) {
    const get = (name: string) => q.get(`g${i}.${name}`);
    const tab = get("tab") ?? "";
    const zero = get("y_axis_min") === "0" || get("y_axis_min") === "zero";
    panels.push({
      ...emptyPanel(),
      expr: get("expr")!,
      // Older links count tabs, newer ones name them; without any, Prometheus opens its table.
      tab: get("show_tree") === "1" || tab === "explain" ? "explain" : /^(0|graph)$/.test(tab) ? "graph" : "table",
      stacked: get("stacked") === "1" || get("display_mode") === "stacked",
      heat: get("display_mode") === "heatmap",
      exemplars: get("show_exemplars") === "1",
      scale: zero ? "zero" : "auto",
    });
  }
  const end = q.get("g0.end_input") ?? q.get("g0.moment_input");
  const match = [...storeNames(q.get("g0.store_matches")).map((name) => `{__address__="${name.replace(/[\\"]/g, "\\$&")}"}`), ...q.getAll("storeMatch[]")];
  return {
    panels,
    rangeMS: positive(q.get("g0.range_input")) ?? DEFAULT_RANGE_MS,
    endMS: end === null ? null : parseTime(end, "utc", Date.now()),
    stepMS: positive(q.get("g0.step_input") ?? q.get("g0.res_step")),
    refreshMS: 0,
    stores: {
      dedup: trueFalse(q.get("g0.deduplicate") ?? q.get("g0.dedup")), partial: trueFalse(q.get("g0.partial_response")),
      resolution: q.get("g0.max_source_resolution") ?? "", match,
    },
    tenant: q.get("g0.tenant") ?? "",
  };
}

/** Thanos writes the chosen stores as JSON, each with its name. */
function storeNames(text: string | null): string[] {
  try {
    const list: unknown = JSON.parse(text ?? "[]");
    return Array.isArray(list) ? list.map((s: unknown) => (s as { name?: unknown } | null)?.name).filter((n): n is string => typeof n === "string") : [];
  } catch {
    return [];
  }
}

/** The address for a state, "" for the empty one. Defaults are left out: short links are read before they are opened. */
export function formatState(s: QueryState): string {
  const q = new URLSearchParams();
  const anyTab = s.panels.some((p) => p.tab !== "graph");
  const anyStacked = s.panels.some((p) => p.stacked);
  const anyExemplars = s.panels.some((p) => p.exemplars);
  const anyView = s.panels.some((p) => formatView(p) !== "");
  if (s.panels.length > 1 || s.panels[0]?.expr) {
    for (const p of s.panels) {
      q.append("expr", p.expr);
      if (anyTab) q.append("tab", p.tab);
      if (anyStacked) q.append("stacked", p.stacked ? "1" : "0");
      if (anyExemplars) q.append("exemplars", p.exemplars ? "1" : "0");
      if (anyView) q.append("view", formatView(p));
    }
  }
  if (s.rangeMS !== DEFAULT_RANGE_MS) q.set("range", formatDuration(s.rangeMS));
  if (s.endMS !== null) q.set("end", new Date(s.endMS).toISOString().replace(".000Z", "Z"));
  if (s.stepMS !== null) q.set("step", formatDuration(s.stepMS));
  if (s.refreshMS > 0) q.set("refresh", formatDuration(s.refreshMS));
  if (s.stores.dedup !== "") q.set("dedup", s.stores.dedup);
  if (s.stores.partial !== "") q.set("partial", s.stores.partial);
  if (s.stores.resolution !== "") q.set("resolution", s.stores.resolution);
  s.stores.match.forEach((m) => q.append("store", m));
  if (s.tenant !== "") q.set("tenant", s.tenant);
  const text = q.toString();
  return text === "" ? "" : `?${text}`;
}
