// Past queries, newest first. Kept by the browser only.

export interface TextStore { getItem(key: string): string | null; setItem(key: string, value: string): void }

const KEY = "ferula.history";
const ENTRIES_MAX = 100;
const CHARS_MAX = 10_000;

export function readHistory(store: TextStore): string[] {
  try {
    const list: unknown = JSON.parse(store.getItem(KEY) ?? "[]");
    return Array.isArray(list) ? list.filter((x): x is string => typeof x === "string").slice(0, ENTRIES_MAX) : [];
  } catch {
    return []; // storage is refused, or another program wrote there: the page works without
  }
}

/** Puts a query first and returns the list. A query that is there already moves up. */
export function addHistory(store: TextStore, expr: string): string[] {
  const text = expr.trim();
  const old = readHistory(store);
  if (text === "" || text.length > CHARS_MAX) return old;
  const list = [text, ...old.filter((x) => x !== text)].slice(0, ENTRIES_MAX);
  try {
    store.setItem(KEY, JSON.stringify(list));
  } catch {
    // full or refused: the list lives until the page is left
  }
  return list;
}
