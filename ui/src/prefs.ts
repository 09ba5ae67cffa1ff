// Settings of a user that are not part of a link.
import { createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import type { Zone } from "./lib/time.ts";
import { store } from "./store.ts";

export interface Prefs { zone: Zone; setZone: (z: Zone) => void }

export const PrefsContext = createContext<Prefs>({ zone: "local", setZone: () => undefined });

export const usePrefs = (): Prefs => useContext(PrefsContext);

const zoneOf = (text: string | null): Zone | null => (text === "utc" || text === "local" ? text : null);

export function useStoredPrefs(): Prefs {
  // A link may name the time zone of the user who copied it.
  const [zone, set] = useState<Zone>(() => zoneOf(new URLSearchParams(location.search).get("zone")) ?? (store.getItem("ferula.zone") === "utc" ? "utc" : "local"));
  return { zone, setZone: (z) => { store.setItem("ferula.zone", z); set(z); } };
}
