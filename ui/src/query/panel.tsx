// One query: its editor, and its result as a graph or a table.
import type { PromQLExtension } from "@prometheus-io/codemirror-promql";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { UnavailableError, type APIResult, type Params } from "../api/client.ts";
import { useAPI, useHealth } from "../api/hooks.ts";
import type { QueryData } from "../api/types.ts";
import { formatElapsed, formatDuration } from "../lib/duration.ts";
import type { Example } from "../lib/examples.ts";
import { formatBytes, formatCount } from "../lib/format.ts";
import { findMark, plainMessage } from "../lib/promerror.ts";
import { autoStep, grid, type Grid } from "../lib/step.ts";
import type { PanelState, QueryState, Tab } from "../lib/urlstate.ts";
import * as icons from "../parts/icons.tsx";
import { Failure, Notice, Progress, Segments } from "../parts/small.tsx";
import { Editor, type EditorHandle } from "./editor.tsx";
import { GraphView } from "./graphview.tsx";
import { HistoryButton } from "./historybutton.tsx";
import { TableView } from "./tableview.tsx";

export interface PanelProps {
  index: number;
  panel: PanelState;
  time: QueryState;
  now: number;
  promql: PromQLExtension;
  examples: readonly Example[];
  /** Whether the examples are worth their room: nothing of the user's own is shown yet. */
  showExamples: boolean;
  removable: boolean;
  autofocus: boolean;
  onRun: (expr: string) => void;
  onChange: (p: Partial<PanelState>) => void;
  onRemove: () => void;
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
  const mark = useMemo(() => (error ? findMark(error.message, panel.expr) : null), [error, panel.expr]);
  useEffect(() => { props.onHandle(editor.current); return () => props.onHandle(null); }, []);
  const run = (expr = editor.current?.text() ?? "") => { setDirty(false); onRun(expr); };
  const label = props.removable ? `Query ${index + 1}` : "Query";
  return (
    <section class="panel" aria-label={label} ref={width}>
      <Progress on={query.loading} />
      <div class="panel-head">
        <Editor expr={panel.expr} label={label} promql={props.promql} mark={mark} onRun={run} onChange={setDirty}
          handle={editor} autofocus={props.autofocus} />
        <HistoryButton onPick={(expr) => { editor.current?.set(expr); run(expr); }} />
        <button type="button" class={`button run ${dirty || panel.expr === "" ? "primary" : ""}`} onClick={() => run()} title="Run the query (Enter)">
          <icons.Play />Run
        </button>
        {props.removable && (
          <button type="button" class="button quiet icon-only" aria-label={`Remove query ${index + 1}`} title="Remove this query" onClick={props.onRemove}><icons.Close /></button>
        )}
      </div>
      {props.showExamples && <Examples list={props.examples} current={panel.expr} onPick={run} />}
      {panel.expr !== "" && (
        <div class="panel-bar">
          <Segments<Tab> label="Show as" value={panel.tab} options={[["graph", "Graph"], ["table", "Table"]]} onChange={(tab) => onChange({ tab })} />
          {panel.tab === "graph" && <>
            <label class="check"><input type="checkbox" checked={panel.stacked} onChange={(e) => onChange({ stacked: e.currentTarget.checked })} />Stacked</label>
            <label class="check" title="Single requests, at the values they had"><input type="checkbox" checked={panel.exemplars} onChange={(e) => onChange({ exemplars: e.currentTarget.checked })} />Exemplars</label>
          </>}
          <span class="spacer" />
          {query.result && <Stats result={query.result} step={panel.tab === "graph" ? query.grid.step : null} />}
        </div>
      )}
      <Result {...props} query={query} dirty={dirty} />
    </section>
  );
}

interface PanelQuery { result: APIResult<QueryData> | null; error: Error | null; loading: boolean; grid: Grid; reload: () => void }

function usePanelQuery({ panel, time, now }: PanelProps, width: { current: HTMLElement | null }): PanelQuery {
  const end = time.endMS ?? now;
  const px = width.current?.clientWidth ?? Math.min(innerWidth - 48, 1600);
  const g = grid(end, time.rangeMS, time.stepMS ?? autoStep(time.rangeMS, px));
  const graph = panel.tab === "graph";
  const params: Params = graph
    ? { query: panel.expr, start: g.start / 1000, end: g.end / 1000, step: g.step / 1000 }
    : { query: panel.expr, time: end / 1000 };
  const path = panel.expr.trim() === "" ? null : graph ? "query_range" : "query";
  const { result, requested, error, loading, reload } = useAPI<QueryData>(path, params, now);
  // After a change of tab the old result belongs to another query.
  const fits = path !== null && "step" in requested === graph;
  return { result: fits ? result : null, error: path === null ? null : error, loading: path !== null && loading, grid: gridOf(requested), reload };
}

/** The steps of the shown result. They differ from the current ones while a newer query runs. */
function gridOf({ start = 0, end = 0, step = 1 }: Params): Grid {
  const ms = (v: string | number) => Math.round(Number(v) * 1000);
  return { start: ms(start), end: ms(end), step: ms(step) };
}

function seriesCount(data: QueryData): number {
  return data.resultType === "vector" || data.resultType === "matrix" ? data.result.length : 1;
}

function Stats({ result, step }: { result: APIResult<QueryData>; step: number | null }) {
  return (
    <p class="stats">
      <span><b>{formatCount(seriesCount(result.data))}</b> series</span>
      {step !== null && <span title="Distance between points">step <b>{formatDuration(step)}</b></span>}
      <span title="Time from request to response"><b>{formatElapsed(result.ms)}</b></span>
      <span title="Size of the response, uncompressed"><b>{formatBytes(result.bytes)}</b></span>
    </p>
  );
}

function Result({ panel, query, dirty, onZoom, onZoomOut }: PanelProps & { query: PanelQuery; dirty: boolean }) {
  const { result, error } = query;
  const { health } = useHealth();
  const retry = query.reload;
  // Without a response of the server the last result stays, under the failure. While the server is away the banner shows it.
  if (error && !(result && error instanceof UnavailableError)) return <><Failure error={error} onRetry={retry} />{dirty && <ErrorLine error={error} expr={panel.expr} />}</>;
  if (!result) return panel.expr === "" ? null : <div class="waiting" />;
  return (
    <div class="result-area">
      {error && health.state === "ok" && <Failure error={error} onRetry={retry} />}
      {result.warnings.map((w) => <Notice kind="warning" key={w}>{plainMessage(w)}</Notice>)}
      {result.infos.map((i) => <Notice kind="info" key={i}>{plainMessage(i.replace(/^PromQL info: /, ""))}</Notice>)}
      {panel.tab === "graph"
        ? <GraphView data={result.data} grid={query.grid} stacked={panel.stacked} exemplarsOf={panel.exemplars ? panel.expr : null} onZoom={onZoom} onZoomOut={onZoomOut} />
        : <TableView data={result.data} />}
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
