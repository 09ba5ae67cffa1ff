// The browser's storage. If the user has switched it off, values are kept in memory until the page is closed.
import type { TextStore } from "./lib/history.ts";

const memory = new Map<string, string>();

export const store: TextStore = {
  getItem(key) {
    try { return localStorage.getItem(key) ?? memory.get(key) ?? null; } catch { return memory.get(key) ?? null; }
  },
  setItem(key, value) {
    try { localStorage.setItem(key, value); } catch { memory.set(key, value); }
  },
};
