// A searchable list of all metrics of the server, with type and help. A click inserts a metric into the query.
import "../style/explorer.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAPI } from "../api/hooks.ts";
import type { Metadata } from "../api/types.ts";
import { suggestExpr } from "../lib/examples.ts";
import { formatCount, plural } from "../lib/format.ts";
import { metricRows, searchMetrics, type MetricRow } from "../lib/metrics.ts";
import { LabelExplorer } from "./labelexplorer.tsx";
import * as icons from "../parts/icons.tsx";
import { Empty, Failure, Filter } from "../parts/small.tsx";

const ROWS_MAX = 150;

interface Props { /** Of the rates that are suggested. */ window: string; onRun: (expr: string) => void; onInsert: (text: string) => void; onClose: () => void }

export function Explorer(props: Props) {
  const { onClose } = props;
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => { dialog.current?.showModal(); }, []);
  const outside = (e: MouseEvent) => { if (e.target === dialog.current) onClose(); };
  return (
    <dialog class="explorer" ref={dialog} aria-label="Metrics" onClose={onClose} onClick={outside}>
      <MetricList {...props} />
    </dialog>
  );
}

/** A server of many stores would otherwise read names of all time from all of them. */
const LOOK_BACK_S = 6 * 3600;
const NAMES_MAX = 50_000;

function MetricList({ window, onRun, onInsert, onClose }: Props) {
  const [since] = useState(() => Math.floor(Date.now() / 1000) - LOOK_BACK_S);
  const [labels, setLabels] = useState<string | null>(null);
  const names = useAPI<string[]>("label/__name__/values", { start: since, limit: NAMES_MAX });
  const metadata = useAPI<Metadata>("metadata", { limit: NAMES_MAX, limit_per_metric: 1 });
  const [filter, setFilter] = useState("");
  const rows = useMemo(() => metricRows(names.result?.data ?? [], metadata.result?.data ?? {}), [names.result, metadata.result]);
  const found = useMemo(() => searchMetrics(rows, filter), [rows, filter]);
  const shown = found.slice(0, ROWS_MAX);
  if (labels !== null) return <LabelExplorer metric={labels} since={since} onRun={onRun} onInsert={onInsert} onBack={() => setLabels(null)} onClose={onClose} />;
  return (
    <div class="explorer-body">
      <div class="explorer-head">
        <h2>Metrics</h2>
        <span class="count">{names.result ? plural(rows.length, "metric") : ""}</span>
        <span class="spacer" />
        <button type="button" class="button quiet icon-only" aria-label="Close" onClick={onClose}><icons.Close /></button>
      </div>
      <Filter value={filter} onInput={setFilter} label="Search names and descriptions" />
      {names.error && <Failure error={names.error} onRetry={names.reload} />}
      <ul class="metrics">
        {shown.map((m) => <Metric key={m.name} metric={m} window={window} onLabels={() => setLabels(m.name)} onRun={onRun} onInsert={onInsert} />)}
      </ul>
      {found.length > shown.length && <p class="hint">{formatCount(found.length - shown.length)} more; type to narrow them down.</p>}
      {names.result && found.length === 0 && <Empty title={rows.length === 0 ? "No metrics yet" : "No metric matches"} />}
    </div>
  );
}

function Metric({ metric, window, onRun, onInsert, onLabels }: { metric: MetricRow; window: string; onLabels: () => void; onRun: (e: string) => void; onInsert: (t: string) => void }) {
  const expr = suggestExpr(metric.name, metric.type, window);
  return (
    <li>
      <button type="button" class="metric-pick" title={`Run ${expr}`} onClick={() => onRun(expr)}>
        <span class="metric-line"><code>{metric.name}</code>{metric.type !== "" && <span class={`type ${metric.type}`}>{metric.type}</span>}</span>
        {metric.help !== "" && <span class="metric-help">{metric.help}</span>}
      </button>
      <button type="button" class="button quiet" title="The labels of this metric and their values" onClick={onLabels}>Labels</button>
      <button type="button" class="button quiet" title="Insert the name at the cursor" onClick={() => onInsert(metric.name)}>Insert</button>
    </li>
  );
}
