// Ranking of the entries of the command palette.

export interface Item { kind: string; text: string; run: () => void }

/** Every word must occur. Texts that begin with the first word come first, then those in which a part does, then the others; short before long. */
export function rankItems(items: readonly Item[], text: string): Item[] {
  const words = text.toLowerCase().split(/\s+/).filter((w) => w !== "");
  if (words.length === 0) return items.filter((i) => i.kind !== "metric" && i.kind !== "label" && i.kind !== "function");
  const first = words[0]!;
  const ranked: { item: Item; rank: number }[] = [];
  for (const item of items) {
    const low = item.text.toLowerCase();
    if (!words.every((w) => low.includes(w) || item.kind.includes(w))) continue;
    const at = low.indexOf(first);
    const rank = at === 0 ? 0 : at > 0 && /[^a-z0-9]/.test(low[at - 1]!) ? 1 : 2;
    ranked.push({ item, rank: rank * 1000 + Math.min(999, item.text.length) });
  }
  return ranked.sort((a, b) => a.rank - b.rank).map(({ item }) => item);
}
