// The frame of all pages: header, the server's state, and the page that the address names.
import type { ComponentChildren } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import type { Server } from "./api/client.ts";
import { FeaturesContext, has, ServerContext, useAPI, useFeatures, useHealth, useLoadedFeatures, useServer } from "./api/hooks.ts";
import { formatDuration } from "./lib/duration.ts";
import type { Route } from "./lib/route.ts";
import { NavContext, useLocation, useNav, type Nav } from "./nav.ts";
import * as icons from "./parts/icons.tsx";
import { Empty, Notice } from "./parts/small.tsx";
import { PrefsContext, useStoredPrefs } from "./prefs.ts";
import { lazy } from "./parts/lazy.tsx";
import { QueryPage } from "./query/page.tsx";
import { useTheme, type Theme } from "./theme.ts";

const ProfilesPage = lazy(() => import("./profiles/page.tsx").then((m) => m.ProfilesPage));
const StatusPage = lazy(() => import("./status/page.tsx").then((m) => m.StatusPage));
const TargetsPage = lazy(() => import("./targets/page.tsx").then((m) => m.TargetsPage));
const DiscoveryPage = lazy(() => import("./targets/discovery.tsx").then((m) => m.DiscoveryPage));
const RulesPage = lazy(() => import("./rules/page.tsx").then((m) => m.RulesPage));
const BacktestPage = lazy(() => import("./rules/backtest.tsx").then((m) => m.BacktestPage));
const AlertmanagersPage = lazy(() => import("./rules/alertmanagers.tsx").then((m) => m.AlertmanagersPage));
const Notices = lazy(() => import("./notices.tsx").then((m) => m.Notices), null);
const Palette = lazy(() => import("./palette.tsx").then((m) => m.Palette), null);

export function App({ server }: { server: Server }) {
  const nav = useLocation(server.base);
  const prefs = useStoredPrefs();
  return (
    <ServerContext.Provider value={server}>
      <NavContext.Provider value={nav}>
        <PrefsContext.Provider value={prefs}>
          <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
          <WithFeatures>
            <Header />
            <Banner />
            <ServerNotices />
            <main id="main" tabIndex={-1}><Guarded key={familyOf(nav.place.route)}><Page nav={nav} /></Guarded></main>
            <PaletteKey />
          </WithFeatures>
        </PrefsContext.Provider>
      </NavContext.Provider>
    </ServerContext.Provider>
  );
}

function WithFeatures({ children }: { children: ComponentChildren }) {
  const features = useLoadedFeatures();
  return <FeaturesContext.Provider value={features}>{children}</FeaturesContext.Provider>;
}

function ServerNotices() {
  return useFeatures()?.["notifications"] === true ? <Notices /> : null;
}

/** Ctrl-K or Command-K anywhere. */
function PaletteKey() {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const listen = (e: KeyboardEvent) => {
      if ((e.ctrlKey || e.metaKey) && !e.shiftKey && !e.altKey && e.key.toLowerCase() === "k") { e.preventDefault(); setOpen((o) => !o); }
    };
    const send = () => setOpen(true);
    document.addEventListener("keydown", listen, true);
    document.addEventListener("palette", send);
    return () => { document.removeEventListener("keydown", listen, true); document.removeEventListener("palette", send); };
  }, []);
  return open ? <Palette onClose={() => setOpen(false)} /> : null;
}

/** The link in the header that a route belongs to. Pages of one family stay mounted when one goes to another. */
const familyOf = (route: Route | null): Route | undefined => LINKS.find(([, , routes]) => route !== null && routes.includes(route))?.[0];

/** A fault in a page leaves a message and the header, not a white window. */
function Guarded({ children }: { children: ComponentChildren }) {
  const [fault] = useErrorBoundary((e) => console.error(e));
  if (!fault) return <>{children}</>;
  return (
    <div class="page">
      <Notice kind="error"><strong>This page has failed</strong><span>{String(fault)}</span></Notice>
      <button type="button" class="button" onClick={() => location.reload()}>Reload</button>
    </div>
  );
}

/** Names of pages that are not their addresses. The query page names itself after its query. */
const TITLES: Partial<Record<Route, string>> = { "tsdb-status": "TSDB status", "config": "Configuration", "alertmanager-discovery": "Alertmanagers" };

const titleOf = (route: Route): string => TITLES[route] ?? route[0]!.toUpperCase() + route.slice(1).replace("-", " ");

function Page({ nav }: { nav: Nav }) {
  const { route } = nav.place;
  // A server of blocks alone evaluates no queries.
  const features = useFeatures();
  const none = route === "query" && !has(features, "query");
  useEffect(() => { if (none) nav.go("blocks", "", true); }, [none]);
  useEffect(() => { if (route !== "query") document.title = route ? `${titleOf(route)} · ferula` : "ferula"; }, [route]);
  if (none) return null;
  switch (route) {
    case "query": return <QueryPage />;
    case "profiles": return <ProfilesPage />;
    case "targets": return <TargetsPage />;
    case "service-discovery": return <DiscoveryPage />;
    case "alerts": case "rules": return <RulesPage route={route} />;
    case "backtest": return <BacktestPage />;
    case "alertmanager-discovery": return <AlertmanagersPage />;
    case null: return <Empty title="There is no such page">Use the links above.</Empty>;
    default: return <StatusPage route={route} />;
  }
}

const LINKS: readonly (readonly [Route, string, readonly Route[]])[] = [
  ["query", "Query", ["query"]],
  ["profiles", "Profiles", ["profiles"]],
  ["alerts", "Alerts", ["alerts", "rules", "backtest", "alertmanager-discovery"]],
  ["targets", "Targets", ["targets", "service-discovery"]],
  ["status", "Status", ["status", "tsdb-status", "blocks", "flags", "config", "stores", "queries"]],
];

/** Pages of the header that need a part of the server. */
const NEEDS: Partial<Record<Route, string>> = { profiles: "profiles", alerts: "alerts", targets: "targets" };

function Header() {
  const nav = useNav();
  const features = useFeatures();
  // An entry whose page the server may not support is shown only after the server has reported its features.
  const links = LINKS.filter(([route]) => nav.place.route === route || (has(features, NEEDS[route] ?? route) && (features !== null || NEEDS[route] === undefined)));
  // Leaving a page of queries and coming back must not lose them.
  const last = useRef<Partial<Record<Route, string>>>({});
  if (nav.place.route === "query" || nav.place.route === "profiles") last.current[nav.place.route] = nav.place.search;
  const follow = (e: MouseEvent, route: Route) => {
    if (e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0) return;
    e.preventDefault();
    nav.go(route, last.current[route] ?? "");
  };
  return (
    <header class="top">
      <a class="brand" href={nav.href("query")} onClick={(e) => follow(e, "query")} aria-label="ferula, start page">
        <icons.Mark /><span>ferula</span>
      </a>
      <nav aria-label="Pages">
        {links.map(([route, text, routes]) => (
          <a key={route} href={nav.href(route)} onClick={(e) => follow(e, route)}
            aria-current={nav.place.route && routes.includes(nav.place.route) ? "page" : undefined}>{text}</a>
        ))}
      </nav>
      <span class="spacer" />
      <button type="button" class="button quiet palette-button" title="Find metrics, services, pages (Ctrl+K)" onClick={() => document.dispatchEvent(new Event("palette"))}><icons.Search /><span>Find</span><kbd>Ctrl K</kbd></button>
      <Version />
      <ThemeButton />
    </header>
  );
}

function Version() {
  const { result } = useAPI<{ version: string; program?: string }>("status/buildinfo");
  // "version" is what clients of Prometheus' API look at; any other server has its own name and version in "program".
  const version = (result?.data.program ?? result?.data.version ?? "").replace(/^ferula /, "");
  return version ? <span class="version" title="Version of the server">{version}</span> : null;
}

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const NAMES: Record<Theme, string> = { auto: "as the system", light: "light", dark: "dark" };

function ThemeButton() {
  const [theme, setTheme] = useTheme();
  const label = `Theme: ${NAMES[theme]}. Change to ${NAMES[NEXT[theme]]}`;
  return (
    <button type="button" class="button quiet icon-only" id="theme" data-theme-choice={theme} aria-label={label} title={label}
      onClick={() => setTheme(NEXT[theme])}>
      {theme === "auto" ? <icons.Auto /> : theme === "light" ? <icons.Sun /> : <icons.Moon />}
    </button>
  );
}

/** Shows that the server is unreachable or starting; the pages keep what they have. */
function Banner() {
  const { health } = useHealth();
  const { skewMS } = useServer();
  if (health.state === "ok" && skewMS !== 0) {
    return (
      <div class="banner" role="status"><strong>The clocks of this computer and of the server differ by {formatDuration(Math.round(Math.abs(skewMS) / 1000) * 1000)}.</strong>
        {" "}The server's is {skewMS > 0 ? "ahead" : "behind"}: what is newest may be missing here, or seem to be.</div>
    );
  }
  if (health.state === "ok") return null;
  if (health.state === "unreachable") {
    return <div class="banner bad" role="alert"><strong>The server cannot be reached.</strong> Retrying until it responds.</div>;
  }
  const { done, total } = health;
  return (
    <div class="banner" role="status">
      <strong>The server is starting.</strong>
      {total > 0 ? <> Replaying the write-ahead log: segment {done} of {total}. <progress value={done} max={total} /></> : " It will be ready shortly."}
    </div>
  );
}
