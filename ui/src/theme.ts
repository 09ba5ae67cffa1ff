// Light, dark, or the system's choice. The choice is an attribute on <html>; the colours are CSS's affair.
import { useEffect, useState } from "preact/hooks";
import { store } from "./store.ts";

export type Theme = "auto" | "light" | "dark";

const KEY = "ferula.theme"; // public/theme.js reads it before the first paint

const system = (): MediaQueryList => matchMedia("(prefers-color-scheme: dark)");

export function readTheme(): Theme {
  const t = store.getItem(KEY);
  return t === "light" || t === "dark" ? t : "auto";
}

export function applyTheme(t: Theme): void {
  const dark = t === "dark" || (t === "auto" && system().matches);
  document.documentElement.dataset["theme"] = dark ? "dark" : "light";
  document.dispatchEvent(new Event("themechange"));
}

/** The choice, and whether it comes out dark. Canvases need the latter: CSS does not reach into them. */
export function useTheme(): [Theme, (t: Theme) => void] {
  const [theme, set] = useState<Theme>(readTheme);
  useEffect(() => {
    applyTheme(theme);
    const follow = () => applyTheme(theme);
    system().addEventListener("change", follow);
    return () => system().removeEventListener("change", follow);
  }, [theme]);
  return [theme, (t) => { store.setItem(KEY, t); set(t); }];
}

export function useIsDark(): boolean {
  const read = () => document.documentElement.dataset["theme"] === "dark";
  const [dark, set] = useState(read);
  useEffect(() => {
    const listen = () => set(read());
    document.addEventListener("themechange", listen);
    return () => document.removeEventListener("themechange", listen);
  }, []);
  return dark;
}
