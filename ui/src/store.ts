// The browser's storage, which the user may have switched off: what is kept then lasts as long as the page.
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
