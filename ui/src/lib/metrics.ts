// The metrics explorer's list.

export interface MetricRow { name: string; type: string; help: string }

type Known = Readonly<Record<string, readonly { type: string; help: string }[]>>;

/** Metadata knows a histogram x, whose series are x_bucket and its kin, and in OpenMetrics a counter x, whose series is x_total. */
const SUFFIX = /_(bucket|count|sum|created|total)$/;

/** One row per stored name. Metadata is found under the name or, for the names above, under x. */
export function metricRows(names: readonly string[], metadata: Known): MetricRow[] {
  return names.map((name) => {
    const entry = (metadata[name] ?? metadata[name.replace(SUFFIX, "")])?.[0];
    return { name, type: entry?.type === "unknown" ? "" : (entry?.type ?? ""), help: entry?.help ?? "" };
  });
}

/** Every word must occur in name or help; names that begin with the text come first, then names that contain it. */
export function searchMetrics(rows: readonly MetricRow[], filter: string): MetricRow[] {
  const words = filter.toLowerCase().split(/\s+/).filter((w) => w !== "");
  const first = words[0];
  if (first === undefined) return [...rows];
  const rank = (r: MetricRow) => (r.name.startsWith(first) ? 0 : words.every((w) => r.name.toLowerCase().includes(w)) ? 1 : 2);
  return rows
    .filter((r) => { const text = `${r.name} ${r.help}`.toLowerCase(); return words.every((w) => text.includes(w)); })
    .map((r) => ({ r, rank: rank(r) }))
    .sort((a, b) => a.rank - b.rank)
    .map(({ r }) => r);
}
