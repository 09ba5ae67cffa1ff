// The address bar as state.
import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { splitPath, type Route } from "./lib/route.ts";

export interface Place { route: Route | null; search: string }

export interface Nav {
  place: Place;
  /** Goes to a route with a search ("" or "?…"); replace leaves no step to go back to. */
  go: (route: Route, search?: string, replace?: boolean) => void;
  /** The same page with another search. */
  setSearch: (search: string, replace?: boolean) => void;
  href: (route: Route) => string;
}

const here = (): Place => ({ route: splitPath(location.pathname).route, search: location.search });

export const NavContext = createContext<Nav | null>(null);

export const useNav = (): Nav => useContext(NavContext)!;

export function useLocation(base: string): Nav {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const listen = () => setPlace(here());
    addEventListener("popstate", listen);
    return () => removeEventListener("popstate", listen);
  }, []);
  const put = (path: string, replace: boolean) => {
    if (replace) history.replaceState(null, "", path);
    else history.pushState(null, "", path);
    setPlace(here());
  };
  const href = (route: Route) => base + route;
  return {
    place,
    href,
    go: (route, search = "", replace = false) => put(href(route) + search, replace),
    setSearch: (search, replace = false) => put(location.pathname + search, replace),
  };
}
