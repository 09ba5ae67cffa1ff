// The query page's state in the address: what is shared by copying it, and what "back" returns to.
//
//   ?expr=up&tab=table&expr=rate(x[1m])&tab=graph&range=1h&end=2026-01-31T14:00:00Z&step=15s&refresh=5s
//
// Panels repeat expr, tab, stacked and exemplars in the same order. Prometheus' own links (g0.expr=…&g0.range_input=1h) are read too,
// so that a bookmark or an alert's generatorURL opens here unchanged; the first panel's time range then counts for all.
import { formatDuration, parseDuration } from "./duration.ts";
import { parseTime } from "./time.ts";

export type Tab = "graph" | "table";

export interface PanelState { expr: string; tab: Tab; stacked: boolean; exemplars: boolean }

export interface QueryState {
  panels: PanelState[];
  rangeMS: number;
  /** null is now. */
  endMS: number | null;
  /** null is chosen by the graph's width. */
  stepMS: number | null;
  /** 0 is off. */
  refreshMS: number;
}

export const DEFAULT_RANGE_MS = 3_600_000;
const PANELS_MAX = 20;

export const emptyPanel = (): PanelState => ({ expr: "", tab: "graph", stacked: false, exemplars: false });

export const emptyState = (): QueryState =>
  ({ panels: [emptyPanel()], rangeMS: DEFAULT_RANGE_MS, endMS: null, stepMS: null, refreshMS: 0 });

export function parseState(search: string): QueryState {
  const q = new URLSearchParams(search);
  return q.has("g0.expr") ? parsePrometheus(q) : parseOwn(q);
}

const positive = (text: string | null): number | null => {
  const ms = text === null ? null : parseDuration(text);
  return ms !== null && ms > 0 ? ms : null;
};

function parseOwn(q: URLSearchParams): QueryState {
  const tabs = q.getAll("tab");
  const stacked = q.getAll("stacked");
  const exemplars = q.getAll("exemplars");
  const panels = q.getAll("expr").slice(0, PANELS_MAX).map((expr, i): PanelState =>
    ({ expr, tab: tabs[i] === "table" ? "table" : "graph", stacked: stacked[i] === "1", exemplars: exemplars[i] === "1" }));
  return {
    panels: panels.length > 0 ? panels : [emptyPanel()],
    rangeMS: positive(q.get("range")) ?? DEFAULT_RANGE_MS,
    endMS: q.has("end") ? parseTime(q.get("end")!, "utc", Date.now()) : null,
    stepMS: positive(q.get("step")),
    refreshMS: positive(q.get("refresh")) ?? 0,
  };
}

function parsePrometheus(q: URLSearchParams): QueryState {
  const panels: PanelState[] = [];
  for (let i = 0; i < PANELS_MAX && q.has(`g${i}.expr`); i++) {
    panels.push({
      expr: q.get(`g${i}.expr`)!,
      // Older links count tabs, newer ones name them; without any, Prometheus opens its table.
      tab: /^(0|graph)$/.test(q.get(`g${i}.tab`) ?? "") ? "graph" : "table",
      stacked: q.get(`g${i}.stacked`) === "1" || q.get(`g${i}.display_mode`) === "stacked",
      exemplars: q.get(`g${i}.show_exemplars`) === "1",
    });
  }
  const end = q.get("g0.end_input") ?? q.get("g0.moment_input");
  return {
    panels,
    rangeMS: positive(q.get("g0.range_input")) ?? DEFAULT_RANGE_MS,
    endMS: end === null ? null : parseTime(end, "utc", Date.now()),
    stepMS: positive(q.get("g0.step_input") ?? q.get("g0.res_step")),
    refreshMS: 0,
  };
}

/** The address for a state, "" for the empty one. Defaults are left out: short links are read before they are opened. */
export function formatState(s: QueryState): string {
  const q = new URLSearchParams();
  const anyTable = s.panels.some((p) => p.tab === "table");
  const anyStacked = s.panels.some((p) => p.stacked);
  const anyExemplars = s.panels.some((p) => p.exemplars);
  if (s.panels.length > 1 || s.panels[0]?.expr) {
    for (const p of s.panels) {
      q.append("expr", p.expr);
      if (anyTable) q.append("tab", p.tab);
      if (anyStacked) q.append("stacked", p.stacked ? "1" : "0");
      if (anyExemplars) q.append("exemplars", p.exemplars ? "1" : "0");
    }
  }
  if (s.rangeMS !== DEFAULT_RANGE_MS) q.set("range", formatDuration(s.rangeMS));
  if (s.endMS !== null) q.set("end", new Date(s.endMS).toISOString().replace(".000Z", "Z"));
  if (s.stepMS !== null) q.set("step", formatDuration(s.stepMS));
  if (s.refreshMS > 0) q.set("refresh", formatDuration(s.refreshMS));
  const text = q.toString();
  return text === "" ? "" : `?${text}`;
}
