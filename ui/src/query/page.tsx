// The query page: one time range, any number of panels, all of it in the address.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAutoRefresh, useServer } from "../api/hooks.ts";
import { addHistory } from "../lib/history.ts";
import { emptyPanel, formatState, parseState, type PanelState, type QueryState } from "../lib/urlstate.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
import { Empty } from "../parts/small.tsx";
import { store } from "../store.ts";
import { newPromQL } from "./cm.ts";
import type { EditorHandle } from "./editor.tsx";
import { Explorer } from "./explorer.tsx";
import { useIntro } from "./intro.ts";
import { Panel } from "./panel.tsx";
import { TimeBar, zoomOut, type TimeChange } from "./timebar.tsx";

const ZOOM_MIN_MS = 1000;

export function QueryPage() {
  const nav = useNav();
  const { search } = nav.place;
  const parsed = useMemo(() => parseState(search), [search]);
  const blank = parsed.panels.length === 1 && parsed.panels[0]!.expr === "";
  const [now, setNow] = useState(Date.now);
  const intro = useIntro(blank, now);
  const state = intro.state ?? parsed;
  const [exploring, setExploring] = useState(false);
  const ids = usePanelIDs(state.panels.length);
  const handles = useRef(new Map<number, EditorHandle>());
  const promql = usePromQL();
  // Only a range that ends now changes.
  useAutoRefresh(state.endMS === null ? state.refreshMS : 0, () => setNow(Date.now()));
  useTitle(parsed.panels[0]!.expr);

  const put = (next: QueryState) => {
    setNow(Date.now());
    const text = formatState(next);
    if (text !== search) nav.setSearch(text);
  };
  const setTime = (c: TimeChange) => put({ ...state, ...c });
  const setPanel = (i: number, p: Partial<PanelState>) => put({ ...state, panels: state.panels.map((old, k) => (k === i ? { ...old, ...p } : old)) });
  const run = (i: number, text: string) => {
    const expr = text.trim();
    if (expr !== "") addHistory(store, expr);
    if (expr !== "" || state.panels.length > 1) setPanel(i, { expr });
  };
  const add = () => { ids.add(); put({ ...state, panels: [...state.panels, emptyPanel()] }); };
  const remove = (i: number) => { ids.remove(i); put({ ...state, panels: state.panels.filter((_, k) => k !== i) }); };
  const zoom = (from: number, to: number) => setTime({ rangeMS: Math.max(to - from, ZOOM_MIN_MS), endMS: Math.max(to, from + ZOOM_MIN_MS), refreshMS: 0 });
  /** The panel that a metric from the explorer goes to: an empty one if there is one, else the last. */
  const target = () => { const i = state.panels.findIndex((p) => p.expr === ""); return i >= 0 ? i : state.panels.length - 1; };

  return (
    <div class="query-page">
      <div class="toolbar">
        <button type="button" class="button" id="explore" onClick={() => setExploring(true)}><icons.List />Metrics</button>
        <span class="spacer" />
        <TimeBar state={state} now={now} onChange={setTime} onRefresh={() => setNow(Date.now())} />
      </div>
      {state.panels.map((panel, i) => (
        <Panel key={ids.list[i]} index={i} panel={panel} time={state} now={now} promql={promql} examples={intro.examples}
          showExamples={intro.state !== null || panel.expr === ""} removable={state.panels.length > 1}
          autofocus={i === 0 && state.panels.length === 1 && hasKeyboard()}
          onRun={(expr) => run(i, expr)} onChange={(p) => setPanel(i, p)} onRemove={() => remove(i)}
          onZoom={zoom} onZoomOut={() => setTime(zoomOut(state, now))}
          onHandle={(h) => { if (h) handles.current.set(ids.list[i]!, h); else handles.current.delete(ids.list[i]!); }} />
      ))}
      {blank && intro.waiting && <Empty title="Waiting for the first samples">This server has none yet. They show here as soon as something is scraped.</Empty>}
      <button type="button" class="button quiet add" onClick={add}><icons.Plus />Add query</button>
      {exploring && (
        <Explorer onClose={() => setExploring(false)}
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

/** Completion's cache is one for the page, and its timers end with it. */
function usePromQL() {
  const server = useServer();
  const promql = useMemo(() => newPromQL(server.base), [server]);
  useEffect(() => () => promql.destroy(), [promql]);
  return promql;
}

/** Keys that stay with their panels when one between them is removed. */
function usePanelIDs(count: number) {
  const next = useRef(0);
  const list = useRef<number[]>([]);
  while (list.current.length < count) list.current.push(next.current++);
  list.current.length = count;
  return {
    list: list.current,
    add: () => { list.current.push(next.current++); },
    remove: (i: number) => { list.current.splice(i, 1); },
  };
}
