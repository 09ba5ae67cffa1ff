// All metrics the server knows, with type and help, to search and to take into a query.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAPI } from "../api/hooks.ts";
import type { Metadata } from "../api/types.ts";
import { suggestExpr } from "../lib/examples.ts";
import { formatCount, plural } from "../lib/format.ts";
import { metricRows, searchMetrics, type MetricRow } from "../lib/metrics.ts";
import * as icons from "../parts/icons.tsx";
import { Empty, Failure, Filter } from "../parts/small.tsx";

const ROWS_MAX = 150;

interface Props { onRun: (expr: string) => void; onInsert: (text: string) => void; onClose: () => void }

export function Explorer({ onRun, onInsert, onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => { dialog.current?.showModal(); }, []);
  const outside = (e: MouseEvent) => { if (e.target === dialog.current) onClose(); };
  return (
    <dialog class="explorer" ref={dialog} aria-label="Metrics" onClose={onClose} onClick={outside}>
      <MetricList onRun={onRun} onInsert={onInsert} onClose={onClose} />
    </dialog>
  );
}

function MetricList({ onRun, onInsert, onClose }: Props) {
  const names = useAPI<string[]>("label/__name__/values");
  const metadata = useAPI<Metadata>("metadata");
  const [filter, setFilter] = useState("");
  const rows = useMemo(() => metricRows(names.result?.data ?? [], metadata.result?.data ?? {}), [names.result, metadata.result]);
  const found = useMemo(() => searchMetrics(rows, filter), [rows, filter]);
  const shown = found.slice(0, ROWS_MAX);
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
        {shown.map((m) => <Metric key={m.name} metric={m} onRun={onRun} onInsert={onInsert} />)}
      </ul>
      {found.length > shown.length && <p class="hint">{formatCount(found.length - shown.length)} more; type to narrow them down.</p>}
      {names.result && found.length === 0 && <Empty title={rows.length === 0 ? "No metrics yet" : "No metric matches"} />}
    </div>
  );
}

function Metric({ metric, onRun, onInsert }: { metric: MetricRow; onRun: (e: string) => void; onInsert: (t: string) => void }) {
  const expr = suggestExpr(metric.name, metric.type);
  return (
    <li>
      <button type="button" class="metric-pick" title={`Run ${expr}`} onClick={() => onRun(expr)}>
        <span class="metric-line"><code>{metric.name}</code>{metric.type !== "" && <span class={`type ${metric.type}`}>{metric.type}</span>}</span>
        {metric.help !== "" && <span class="metric-help">{metric.help}</span>}
      </button>
      <button type="button" class="button quiet" title="Put the name where the cursor is" onClick={() => onInsert(metric.name)}>Insert</button>
    </li>
  );
}
