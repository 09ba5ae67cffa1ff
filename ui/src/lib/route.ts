// Addresses of the page. All are one level deep, so that "./" is the base under any prefix a proxy may put in front; the
// names are Prometheus' own, so that its links and people's fingers find them.

export type Route = "query" | "profiles" | "targets" | "status" | "tsdb-status" | "flags" | "config" | "stores" | "queries" | "alerts" | "rules" | "service-discovery" | "alertmanager-discovery" | "blocks";

const ROUTES: Readonly<Record<string, Route>> = {
  "": "query",
  query: "query",
  graph: "query",
  profiles: "profiles",
  targets: "targets",
  status: "status",
  "tsdb-status": "tsdb-status",
  flags: "flags",
  config: "config",
  stores: "stores",
  queries: "queries",
  alerts: "alerts",
  rules: "rules",
  "service-discovery": "service-discovery",
  "alertmanager-discovery": "alertmanager-discovery",
  blocks: "blocks",
};

/** "/prom/targets" is "/prom/" and "targets". */
export function splitPath(pathname: string): { base: string; route: Route | null } {
  const cut = pathname.lastIndexOf("/") + 1;
  const name = pathname.slice(cut);
  return { base: pathname.slice(0, cut), route: Object.hasOwn(ROUTES, name) ? ROUTES[name]! : null };
}
