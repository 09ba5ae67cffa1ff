// One query: its editor, and its result as a graph, a table or a tree.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { UnavailableError } from "../api/client.ts";
import { useHealth } from "../api/hooks.ts";
import { formatElapsed } from "../lib/duration.ts";
import type { Example } from "../lib/examples.ts";
import { findMark, plainMessage } from "../lib/promerror.ts";
import type { PanelState, QueryState, Tab } from "../lib/urlstate.ts";
import * as icons from "../parts/icons.tsx";
import { lazy } from "../parts/lazy.tsx";
import { Popover } from "../parts/popover.tsx";
import { Failure, Notice, Progress, Segments, Warnings } from "../parts/small.tsx";
import { CostBar } from "./costbar.tsx";
import { Editor, type EditorHandle } from "./editor.tsx";
import { GraphView } from "./graphview.tsx";
import { HistoryButton } from "./historybutton.tsx";
import { usePanelQuery, type PanelQuery } from "./panelquery.ts";

const ViewControls = lazy(() => import("./viewcontrols.tsx").then((m) => m.ViewControls), null);
const TableView = lazy(() => import("./tableview.tsx").then((m) => m.TableView));
const Explain = lazy(() => import("./explain.tsx").then((m) => m.Explain));
const PanelMenu = lazy(() => import("./panelmenu.tsx").then((m) => m.PanelMenu), <p class="hint">…</p>);

export interface PanelProps {
  index: number;
  panel: PanelState;
  time: QueryState;
  now: number;
  /** The scrape interval, which Grafana's variables need; null where the server does not tell. */
  scrapeMS: number | null;
  examples: readonly Example[];
  /** Whether the examples are worth their room: nothing of the user's own is shown yet. */
  showExamples: boolean;
  removable: boolean;
  autofocus: boolean;
  onRun: (expr: string) => void;
  onChange: (p: Partial<PanelState>) => void;
  onRemove: () => void;
  onDuplicate: () => void;
  onZoom: (fromMS: number, toMS: number) => void;
  onZoomOut: () => void;
  onHandle: (h: EditorHandle | null) => void;
}

export function Panel(props: PanelProps) {
  const { panel, index, onRun, onChange } = props;
  const editor = useRef<EditorHandle>(null);
  const [dirty, setDirty] = useState(false);
  const width = useRef<HTMLElement>(null);
  const query = usePanelQuery(props, width);
  const error = query.error;
  const mark = useMemo(() => (error && query.sent === panel.expr ? findMark(error.message, panel.expr) : null), [error, query.sent, panel.expr]);
  useEffect(() => { props.onHandle(editor.current); return () => props.onHandle(null); }, []);
  const run = (expr = editor.current?.text() ?? "") => { setDirty(false); onRun(expr); };
  const label = props.removable ? `Query ${index + 1}` : "Query";
  return (
    <section class="panel" aria-label={label} ref={width}>
      <Progress on={query.loading} />
      <div class="panel-head">
        <Editor expr={panel.expr} label={label} mark={mark} onRun={run} onChange={setDirty} handle={editor} autofocus={props.autofocus} />
        <HistoryButton onPick={(expr) => { editor.current?.set(expr); run(expr); }} />
        <RunButton query={query} strong={dirty || panel.expr === ""} onRun={() => run()} />
        <Popover label={`More for ${label.toLowerCase()}`} button={<icons.More />} buttonClass="button quiet icon-only" align="right">
          {(close) => <PanelMenu panel={panel} state={props.time} now={props.now} query={query} text={editor.current?.text() ?? panel.expr} close={close}
            onFormat={(text) => { editor.current?.set(text); run(text); }} onDuplicate={props.onDuplicate} />}
        </Popover>
        {props.removable && (
          <button type="button" class="button quiet icon-only" aria-label={`Remove query ${index + 1}`} title="Remove this query" onClick={props.onRemove}><icons.Close /></button>
        )}
      </div>
      {props.showExamples && <Examples list={props.examples} current={panel.expr} onPick={run} />}
      {panel.expr !== "" && (
        <div class="panel-bar">
          <Segments<Tab> label="Show as" value={panel.tab} options={[["graph", "Graph"], ["table", "Table"], ["explain", "Explain"]]} onChange={(tab) => onChange({ tab })} />
          {panel.tab === "graph" && <ViewControls panel={panel} onChange={onChange} />}
          <span class="spacer" />
          {query.result && <CostBar result={query.result} step={panel.tab === "graph" ? query.grid.step : null} counted={panel.stats} onCount={(stats) => onChange({ stats })} />}
        </div>
      )}
      {panel.tab === "explain" && panel.expr !== ""
        ? <Explain expr={query.sent} params={query.storeParams} timeMS={props.time.endMS ?? props.now} onPick={(expr) => { editor.current?.set(expr); run(expr); onChange({ expr, tab: "table" }); }} />
        : <Result {...props} query={query} dirty={dirty} />}
    </section>
  );
}

/** While a query runs, its button ends it, and reports how long it has taken. */
function RunButton({ query, strong, onRun }: { query: PanelQuery; strong: boolean; onRun: () => void }) {
  const [elapsed, setElapsed] = useState(0);
  useEffect(() => {
    setElapsed(0);
    if (!query.loading) return undefined;
    const timer = setInterval(() => setElapsed(Date.now() - query.sinceMS), 250);
    return () => clearInterval(timer);
  }, [query.loading, query.sinceMS]);
  if (elapsed < 400) {
    return <button type="button" class={`button run ${strong ? "primary" : ""}`} onClick={onRun} title="Run the query (Enter)"><icons.Play />Run</button>;
  }
  return (
    <button type="button" class="button run" id="cancel" onClick={query.cancel} title="Cancel the running query" aria-label={`Cancel, running for ${formatElapsed(elapsed)}`}>
      <icons.Stop />{formatElapsed(Math.floor(elapsed / 100) * 100)}
    </button>
  );
}

function Result({ panel, query, dirty, onZoom, onZoomOut, onChange }: PanelProps & { query: PanelQuery; dirty: boolean }) {
  const { result, error } = query;
  const { health } = useHealth();
  const retry = query.reload;
  // If the server does not respond, the last result stays below the error. While the server is away the banner shows the error instead.
  if (error && !(result && error instanceof UnavailableError)) return <><Failure error={error} onRetry={retry} />{(dirty || query.sent !== panel.expr) && <ErrorLine error={error} expr={query.sent} />}</>;
  if (!result) return panel.expr === "" ? null : <div class="waiting" />;
  return (
    <div class="result-area">
      {error && health.state === "ok" && <Failure error={error} onRetry={retry} />}
      <Warnings list={result.warnings.map(plainMessage)} />
      {result.infos.map((i) => <Notice kind="info" key={i}>{plainMessage(i.replace(/^PromQL info: /, ""))}</Notice>)}
      {query.note !== "" && <p class="note">{query.note}</p>}
      {result.data.resultType === "range"
        ? <GraphView panel={panel} data={result.data} before={query.before} grid={query.grid} expr={query.sent} onChange={onChange} onZoom={onZoom} onZoomOut={onZoomOut} />
        : <TableView data={result.data} timeMS={query.timeMS} panel={panel} onChange={onChange} />}
    </div>
  );
}

/** The failed query with the place marked, shown where the editor has moved on and marks it no longer. */
function ErrorLine({ error, expr }: { error: Error; expr: string }) {
  const m = findMark(error.message, expr);
  if (!m) return null;
  return <pre class="error-line">{expr.slice(0, m.from)}<mark>{expr.slice(m.from, m.to)}</mark>{expr.slice(m.to)}</pre>;
}

function Examples({ list, current, onPick }: { list: readonly Example[]; current: string; onPick: (expr: string) => void }) {
  if (list.length === 0) return null;
  return (
    <div class="examples">
      <span>Try</span>
      {list.map((e) => (
        <button type="button" class="chip" key={e.expr} title={e.expr} aria-pressed={e.expr === current} onClick={() => onPick(e.expr)}>{e.title}</button>
      ))}
    </div>
  );
}
