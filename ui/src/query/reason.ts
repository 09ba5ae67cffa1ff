// "Why did it change": from a selected range of a graph to the differential flame graph of that range against the same
// length before it, of what the graph's lines and the profiles both name.
import { useFeatures, useServer } from "../api/hooks.ts";
import { commonLabels, type Labels } from "../lib/labels.ts";
import { formatProfileState, parseProfileState } from "../lib/profilestate.ts";
import { before, candidates, narrow } from "../lib/reason.ts";
import { useNav } from "../nav.ts";
import type { Brush } from "./chart.tsx";

interface Names { names?: string[] }

export function useReason(sets: readonly Labels[]): Brush | null {
  const server = useServer();
  const nav = useNav();
  const features = useFeatures();
  if (features?.["profiles"] !== true) return null;
  const open = async (fromMS: number, toMS: number): Promise<void> => {
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
    nav.go("profiles", formatProfileState({
      ...parseProfileState(""), service, matchers, rangeMS: span.end - span.start, endMS: span.end, base,
    }));
  };
  return { onDiff: (fromMS, toMS) => void open(fromMS, toMS) };
}
