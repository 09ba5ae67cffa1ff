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

export interface Split { common: Labels; varying: Labels[] }

/**
 * Takes what all sets share out of each. A legend of forty series that repeats job and instance forty times hides the
 * one label that distinguishes them.
 */
export function splitCommon(sets: readonly Labels[]): Split {
  const first = sets[0];
  if (!first || sets.length < 2) return { common: {}, varying: [...sets] };
  const shared = Object.keys(first).filter((k) => sets.every((s) => s[k] === first[k]));
  const common = Object.fromEntries(shared.map((k) => [k, first[k]!]));
  const varying = sets.map((s) => Object.fromEntries(Object.entries(s).filter(([k]) => !(k in common))));
  return { common, varying };
}
