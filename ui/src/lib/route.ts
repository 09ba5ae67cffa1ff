// Addresses of the page. All are one level deep, so that "./" is the base under any prefix a proxy may put in front; the
// names are Prometheus' own, so that its links and people's fingers find them.

const ROUTES = ["query", "profiles", "targets", "status", "tsdb-status", "flags", "config", "stores", "queries", "alerts", "rules", "service-discovery", "alertmanager-discovery", "backtest", "blocks"] as const;

export type Route = (typeof ROUTES)[number];

/** "/prom/targets" is "/prom/" and "targets". */
export function splitPath(pathname: string): { base: string; route: Route | null } {
  const cut = pathname.lastIndexOf("/") + 1;
  const name = pathname.slice(cut);
  return { base: pathname.slice(0, cut), route: ROUTES.find((r) => r === (name === "" || name === "graph" ? "query" : name)) ?? null };
}
