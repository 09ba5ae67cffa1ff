// Selects the profiles that explain a selected range of a graph, by the labels that the graph's series and profiles share.
import type { Server } from "../api/client.ts";
import { commonLabels, type Labels } from "../lib/labels.ts";
import { formatProfileState, parseProfileState } from "../lib/profilestate.ts";
import { before, candidates, narrow } from "../lib/reason.ts";

interface Names { names?: string[] }

/** The state of the profiles page, as the search of an address. */
export async function profilesOf(server: Server, sets: readonly Labels[], fromMS: number, toMS: number): Promise<string> {
  const common = sets.length === 1 ? sets[0]! : commonLabels(sets);
  // The page of profiles has whole seconds. Rounding lets the two ranges follow each other without a gap.
  const start = Math.floor(fromMS / 1000) * 1000;
  const span = { start, end: Math.max(Math.ceil(toMS / 1000) * 1000, start + 1000) };
  const base = before(span);
  const range = { start: String(base.start), end: String(span.end) };
  const signal = AbortSignal.timeout(10_000);
  const values: Record<string, string[]> = {};
  try {
    const names = await server.call<Names>("querier.v1.QuerierService/LabelNames", { matchers: [], ...range }, signal);
    const wanted = [...new Set(["service_name", ...candidates(common, names.data.names ?? [])])].slice(0, 12);
    await Promise.all(wanted.map(async (name) => {
      const r = await server.call<Names>("querier.v1.QuerierService/LabelValues", { name, matchers: [], ...range }, signal);
      values[name] = r.data.names ?? [];
    }));
  } catch {
    // The page of profiles shows the error. Without label names the profiles of all services are selected.
  }
  const { service, matchers } = narrow(common, values);
  return formatProfileState({
    ...parseProfileState(""), service, matchers, rangeMS: span.end - span.start, endMS: span.end, base,
  });
}
