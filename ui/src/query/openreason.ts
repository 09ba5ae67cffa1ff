// Which profiles explain a selected range of a graph: those of what the graph's lines and the profiles both name.
import type { Server } from "../api/client.ts";
import { commonLabels, type Labels } from "../lib/labels.ts";
import { formatProfileState, parseProfileState } from "../lib/profilestate.ts";
import { before, candidates, narrow } from "../lib/reason.ts";

interface Names { names?: string[] }

/** The state of the profiles page, as the search of an address. */
export async function profilesOf(server: Server, sets: readonly Labels[], fromMS: number, toMS: number): Promise<string> {
  const common = sets.length === 1 ? sets[0]! : commonLabels(sets);
  // Whole seconds, as the page of profiles has them, so that both ranges meet.
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
    // The page of profiles states what is wrong with them; without names nothing is narrowed.
  }
  const { service, matchers } = narrow(common, values);
  return formatProfileState({
    ...parseProfileState(""), service, matchers, rangeMS: span.end - span.start, endMS: span.end, base,
  });
}
