// The query page: one time range, any number of panels, all of it in the address.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { has, useAPI, useAutoRefresh, useFeatures, useServer } from "../api/hooks.ts";
import { parseDuration } from "../lib/duration.ts";
import { rateWindow } from "../lib/examples.ts";
import { addHistory } from "../lib/history.ts";
import { choosesStores, emptyPanel, formatState, PANELS_MAX, parseState, type PanelState, type QueryState } from "../lib/urlstate.ts";
import { hasVariables, scrapeIntervalOf } from "../lib/variables.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
import { lazy } from "../parts/lazy.tsx";
import { Empty } from "../parts/small.tsx";
import { store } from "../store.ts";
import type { EditorHandle } from "./editor.tsx";
import { useIntro } from "./intro.ts";
import { Panel } from "./panel.tsx";
import { TimeBar, zoomOut, type TimeChange } from "./timebar.tsx";

const ZOOM_MIN_MS = 1000;

const StoreBar = lazy(() => import("./storebar.tsx").then((m) => m.StoreBar), null);
const Explorer = lazy(() => import("./explorer.tsx").then((m) => m.Explorer), null);

export function QueryPage() {
  const nav = useNav();
  const { search } = nav.place;
  const parsed = useMemo(() => parseState(search), [search]);
  const blank = parsed.panels.length === 1 && parsed.panels[0]!.expr === "";
  const [now, setNow] = useState(Date.now);
  const wanted = parsed.panels.some((p) => p.expr === "");
  const scrape = useScrapeInterval(wanted || parsed.panels.some((p) => hasVariables(p.expr)));
  const window = scrape === undefined ? null : rateWindow(scrape);
  const intro = useIntro(blank, wanted, now, window);
  const state = intro.state ?? parsed;
  const [exploring, setExploring] = useState(false);
  const ids = usePanelIDs(state.panels.length);
  const handles = useRef(new Map<number, EditorHandle>());
  const server = useServer();
  server.tenant = state.tenant;
  // Only a range that ends now has new data after a refresh.
  useAutoRefresh(state.endMS === null ? state.refreshMS : 0, () => setNow(Date.now()));
  useTitle(parsed.panels[0]!.expr);

  /** A change of what is drawn of the same data: nothing is requested again. */
  const show = (next: QueryState) => {
    const text = formatState(next);
    if (text !== search) nav.setSearch(text);
  };
  const put = (next: QueryState) => { setNow(Date.now()); show(next); };
  const setTime = (c: TimeChange) => put({ ...state, ...c });
  const setPanel = (i: number, p: Partial<PanelState>) => {
    const next = { ...state, panels: state.panels.map((old, k) => (k === i ? { ...old, ...p } : old)) };
    // A visitor's first change takes the example over, with the time that it has.
    if (intro.state === null && !["expr", "tab", "stats", "compareMS"].some((k) => k in p)) show(next);
    else put(next);
  };
  const run = (i: number, text: string) => {
    const expr = text.trim();
    if (expr !== "") addHistory(store, expr);
    if (expr !== "" || state.panels.length > 1) setPanel(i, { expr });
  };
  const full = state.panels.length >= PANELS_MAX;
  const add = () => { ids.add(); put({ ...state, panels: [...state.panels, emptyPanel()] }); };
  const duplicate = (i: number) => { if (full) return; ids.add(i + 1); put({ ...state, panels: state.panels.flatMap((p, k) => (k === i ? [p, p] : [p])) }); };
  const remove = (i: number) => { ids.remove(i); put({ ...state, panels: state.panels.filter((_, k) => k !== i) }); };
  const zoom = (from: number, to: number) => setTime({ rangeMS: Math.max(to - from, ZOOM_MIN_MS), endMS: Math.max(to, from + ZOOM_MIN_MS), refreshMS: 0 });
  const features = useFeatures();
  /** The panel that a metric from the explorer goes to: an empty one if there is one, else the last. */
  const target = () => { const i = state.panels.findIndex((p) => p.expr === ""); return i >= 0 ? i : state.panels.length - 1; };

  return (
    <div class="query-page">
      <h1 class="unseen">Query</h1>
      <div class="toolbar">
        <button type="button" class="button" id="explore" onClick={() => setExploring(true)}><icons.List />Metrics</button>
        {(features?.["stores"] === true || choosesStores(state)) && <StoreBar state={state} onChange={(c) => put({ ...state, ...c })} />}
        <span class="spacer" />
        <TimeBar state={state} now={now} onChange={setTime} onRefresh={() => setNow(Date.now())} />
      </div>
      {state.panels.map((panel, i) => (
        <Panel key={ids.list[i]} index={i} panel={panel} time={state} now={now} scrapeMS={scrape ?? null} examples={intro.examples}
          showExamples={intro.state !== null || panel.expr === ""} removable={state.panels.length > 1}
          autofocus={i === 0 && state.panels.length === 1 && hasKeyboard()}
          onRun={(expr) => run(i, expr)} onChange={(p) => setPanel(i, p)} onRemove={() => remove(i)} onDuplicate={() => duplicate(i)}
          onZoom={zoom} onZoomOut={() => setTime(zoomOut(state, now))}
          onHandle={(h) => { if (h) handles.current.set(ids.list[i]!, h); else handles.current.delete(ids.list[i]!); }} />
      ))}
      {blank && intro.waiting && <Empty title="Waiting for the first samples">This server has none yet. They show here as soon as something is scraped.</Empty>}
      <button type="button" class="button quiet add" onClick={add} disabled={full} title={full ? `A page has ${PANELS_MAX} queries at most` : ""}><icons.Plus />Add query</button>
      {exploring && (
        <Explorer window={window ?? "5m"} onClose={() => setExploring(false)}
          onRun={(expr) => { setExploring(false); run(target(), expr); }}
          onInsert={(text) => { setExploring(false); const h = handles.current.get(ids.list[target()]!); h?.insert(text); h?.focus(); }} />
      )}
    </div>
  );
}

/** On a phone the focus would bring up a keyboard over half of the screen. */
const hasKeyboard = () => matchMedia("(pointer: fine)").matches;

/** Browser tabs are distinguished by their queries. */
function useTitle(expr: string): void {
  useEffect(() => { document.title = expr === "" ? "ferula" : `${expr.slice(0, 60)} · ferula`; }, [expr]);
}

/** The scrape interval of the configuration; null where it is not reported, undefined while it is not known yet. */
function useScrapeInterval(wanted: boolean): number | null | undefined {
  const features = useFeatures();
  const there = has(features, "config");
  const { result, error } = useAPI<{ yaml: string }>(wanted && features !== null && there ? "status/config" : null);
  return useMemo(() => (result ? scrapeIntervalOf(result.data.yaml, parseDuration) : error || (features !== null && !there) ? null : undefined), [result, error, features]);
}

/** Keys that stay with their panels when one between them is removed. */
function usePanelIDs(count: number) {
  const next = useRef(0);
  const list = useRef<number[]>([]);
  while (list.current.length < count) list.current.push(next.current++);
  list.current.length = count;
  return {
    list: list.current,
    add: (at = list.current.length) => { list.current.splice(at, 0, next.current++); },
    remove: (i: number) => { list.current.splice(i, 1); },
  };
}
