// Label sets as text.

export type Labels = Readonly<Record<string, string>>;

export const escapeValue = (v: string): string =>
  v.replace(/\\/g, "\\\\").replace(/"/g, '\\"').replace(/\n/g, "\\n");

const isPlainName = (n: string): boolean => /^[a-zA-Z_:][a-zA-Z0-9_:]*$/.test(n);

/** UTF-8 names, which Prometheus 3 allows, are quoted inside the braces. */
const quoteName = (n: string): string => (isPlainName(n) ? n : `"${escapeValue(n)}"`);

/** `name{a="b"}`, a selector that finds the series again. `{}` where there are no labels at all. */
export function seriesText(labels: Labels): string {
  const name = labels["__name__"] ?? "";
  const plain = name === "" || isPlainName(name);
  const pairs = Object.keys(labels)
    .filter((k) => k !== "__name__")
    .map((k) => `${quoteName(k)}="${escapeValue(labels[k]!)}"`);
  if (!plain) pairs.unshift(`"${escapeValue(name)}"`);
  const body = pairs.length > 0 ? `{${pairs.join(", ")}}` : "";
  return (plain ? name : "") + body || "{}";
}

/** Names of all labels in the sets but the metric name, ordered. */
export function labelNames(sets: readonly Labels[]): string[] {
  const names = new Set<string>();
  for (const s of sets) for (const k of Object.keys(s)) if (k !== "__name__") names.add(k);
  return [...names].sort();
}

/**
 * What all sets share. A legend of forty series that repeats job and instance forty times hides the one label that
 * distinguishes them.
 */
export function commonLabels(sets: readonly Labels[]): Labels {
  const first = sets[0];
  if (!first || sets.length < 2) return {};
  return Object.fromEntries(Object.entries(first).filter(([k, v]) => sets.every((s) => s[k] === v)));
}

/** A set without what it shares with others. */
export const without = (labels: Labels, common: Labels): Labels =>
  Object.fromEntries(Object.entries(labels).filter(([k]) => !(k in common)));

/** A key by which texts sort as people count: "shard 9" before "shard 10". */
export const countingKey = (text: string): string => text.toLowerCase().replace(/\d+/g, (d) => d.padStart(12, "0"));
