// One parameter of the address as state, for filters of a page, so that a link contains them.
import { useNav } from "../nav.ts";

export function useSearchParam(name: string): [string, (v: string) => void] {
  const nav = useNav();
  const value = new URLSearchParams(nav.place.search).get(name) ?? "";
  const set = (v: string) => {
    const q = new URLSearchParams(location.search);
    if (v === "") q.delete(name);
    else q.set(name, v);
    const text = q.toString();
    nav.setSearch(text === "" ? "" : `?${text}`, true);
  };
  return [value, set];
}
