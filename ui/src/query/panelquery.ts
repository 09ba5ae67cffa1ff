// The requests of a panel: the query itself, and the same query of an earlier time for comparison.
import type { APIResult, Params } from "../api/client.ts";
import { useQueryAPI } from "../api/hooks.ts";
import type { QueryData } from "../api/types.ts";
import { withoutRange } from "../lib/rangeless.ts";
import { autoStep, grid, type Grid } from "../lib/step.ts";
import type { PanelState, QueryState, StoreChoice } from "../lib/urlstate.ts";
import { expandVariables } from "../lib/variables.ts";

export interface PanelQuery {
  result: APIResult<QueryData> | null;
  /** The same series at an earlier time, and how much earlier. */
  before: { data: QueryData; earlierMS: number } | null;
  error: Error | null;
  loading: boolean;
  sinceMS: number;
  grid: Grid;
  /** The instant of a table. */
  timeMS: number;
  /** The expression that was sent: variables have become durations, and a graph has no range at its end. */
  sent: string;
  note: string;
  path: "query" | "query_range";
  params: Params;
  storeParams: Params;
  reload: () => void;
  cancel: () => void;
}

/** What the choice of stores is in the API. */
export function storeParams(c: StoreChoice): Params {
  return {
    dedup: c.dedup === "" ? undefined : c.dedup === "1" ? "true" : "false",
    partial_response: c.partial === "" ? undefined : c.partial === "1" ? "true" : "false",
    max_source_resolution: c.resolution === "" ? undefined : c.resolution,
    "storeMatch[]": c.match.length > 0 ? c.match : undefined,
  };
}

interface Requested { panel: PanelState; time: QueryState; now: number; scrapeMS: number | null }

export function usePanelQuery({ panel, time, now, scrapeMS }: Requested, width: { current: HTMLElement | null }): PanelQuery {
  const end = time.endMS ?? now;
  const px = width.current?.clientWidth ?? Math.min(innerWidth - 48, 1600);
  const g = grid(end, time.rangeMS, time.stepMS ?? autoStep(time.rangeMS, px));
  const graph = panel.tab === "graph";
  const expanded = expandVariables(panel.expr, { rangeMS: time.rangeMS, stepMS: g.step, endMS: end, scrapeMS });
  const rangeless = graph ? withoutRange(expanded) : null;
  const sent = rangeless ?? expanded;
  const stores = storeParams(time.stores);
  const more: Params = { ...stores, ...(panel.stats ? { stats: "true", analyze: "true" } : {}) };
  const params: Params = graph
    ? { query: sent, start: g.start / 1000, end: g.end / 1000, step: g.step / 1000, ...more }
    : { query: sent, time: end / 1000, ...more };
  const path = sent.trim() === "" || panel.tab === "explain" ? null : graph ? "query_range" : "query";
  const tick = `${now}|${time.tenant}`;
  const { result, requested, error, loading, sinceMS, reload, cancel } = useQueryAPI(path, params, tick);
  const shift = Math.round(panel.compareMS / g.step) * g.step;
  const earlier = useQueryAPI(graph && path !== null && shift > 0 ? "query_range" : null,
    { query: sent, start: (g.start - shift) / 1000, end: (g.end - shift) / 1000, step: g.step / 1000, ...stores }, tick);
  // After a change of tab the old result belongs to another query.
  const fits = path !== null && "step" in requested === graph;
  return {
    result: fits ? result : null, error: path === null ? null : (error ?? (shift > 0 ? earlier.error : null)), loading: path !== null && loading, sinceMS,
    before: fits && shift > 0 && earlier.result ? { data: earlier.result.data, earlierMS: shift } : null,
    grid: gridOf(requested), timeMS: Number(requested["time"] ?? end / 1000) * 1000, sent,
    note: rangeless === null ? "" : `Drawn without its range: ${sent.trim()}`,
    path: graph ? "query_range" : "query", params, storeParams: stores, reload, cancel,
  };
}

/** The steps of the shown result. They differ from the current ones while a newer query runs. */
function gridOf(requested: Params): Grid {
  const ms = (name: string, byDefault: number) => Math.round(Number(requested[name] ?? byDefault) * 1000);
  return { start: ms("start", 0), end: ms("end", 0), step: ms("step", 1) };
}
