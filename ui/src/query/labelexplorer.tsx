// The labels of a metric, sorted by their number of values; clicks build a selector from them.
import { useMemo, useState } from "preact/hooks";
import { useAPI } from "../api/hooks.ts";
import { formatCount, plural } from "../lib/format.ts";
import { seriesText, type Labels } from "../lib/labels.ts";
import * as icons from "../parts/icons.tsx";
import { Empty, Failure, Filter, Progress } from "../parts/small.tsx";

interface Props { metric: string; since: number; onRun: (expr: string) => void; onInsert: (text: string) => void; onBack: () => void; onClose: () => void }

const SERIES_MAX = 20_000;
const VALUES_SHOWN = 40;

interface LabelRow { name: string; values: [string, number][] }

/** Names by the number of their values, and values by the number of series that have them. */
function labelRows(sets: readonly Labels[]): LabelRow[] {
  const counts = new Map<string, Map<string, number>>();
  for (const s of sets) {
    for (const [k, v] of Object.entries(s)) {
      if (k === "__name__") continue;
      let of = counts.get(k);
      if (!of) counts.set(k, (of = new Map()));
      of.set(v, (of.get(v) ?? 0) + 1);
    }
  }
  return [...counts].map(([name, of]) => ({ name, values: [...of].sort((a, b) => b[1] - a[1]) })).sort((a, b) => b.values.length - a.values.length || (a.name < b.name ? -1 : 1));
}

export function LabelExplorer({ metric, since, onRun, onInsert, onBack, onClose }: Props) {
  const [chosen, setChosen] = useState<Labels>({});
  const [filter, setFilter] = useState("");
  const selector = seriesText({ __name__: metric, ...chosen });
  const { result, error, loading, reload } = useAPI<Labels[]>("series", { "match[]": seriesText({ __name__: metric }), start: since, limit: SERIES_MAX });
  const all = result?.data ?? [];
  const left = useMemo(() => all.filter((s) => Object.entries(chosen).every(([k, v]) => s[k] === v)), [all, chosen]);
  const rows = useMemo(() => labelRows(left).filter((r) => filter === "" || r.name.includes(filter) || r.values.some(([v]) => v.toLowerCase().includes(filter.toLowerCase()))), [left, filter]);
  const pick = (name: string, value: string) => setChosen((c) => {
    const { [name]: had, ...rest } = c;
    return had === value ? rest : { ...c, [name]: value };
  });
  return (
    <div class="explorer-body">
      <div class="explorer-head">
        <button type="button" class="button quiet icon-only" aria-label="Back to the metrics" onClick={onBack}><icons.Left /></button>
        <h2>{metric}</h2>
        <span class="count">{result ? plural(left.length, "series", "series") : ""}{all.length >= SERIES_MAX && ", the first of more"}</span>
        <span class="spacer" />
        <button type="button" class="button quiet icon-only" aria-label="Close" onClick={onClose}><icons.Close /></button>
      </div>
      <div class="label-selector"><code>{selector}</code><span class="spacer" />
        <button type="button" class="button" onClick={() => onInsert(selector)}>Insert</button>
        <button type="button" class="button primary" onClick={() => onRun(selector)}>Run</button>
      </div>
      <Filter value={filter} onInput={setFilter} label="Search labels and values" />
      <Progress on={loading} />
      {error && <Failure error={error} onRetry={reload} />}
      {result && left.length === 0 && <Empty title="No series" />}
      <ul class="label-rows" tabIndex={0} aria-label="Labels">
        {rows.map((r) => (
          <li key={r.name}>
            <p><code>{r.name}</code> <span class="hint">{plural(r.values.length, "value")}</span></p>
            <div>
              {r.values.slice(0, VALUES_SHOWN).map(([v, n]) => (
                <button type="button" class="chip" key={v} aria-pressed={chosen[r.name] === v} title={`${formatCount(n)} series`} onClick={() => pick(r.name, v)}>{v === "" ? "(empty)" : v}</button>
              ))}
              {r.values.length > VALUES_SHOWN && <span class="hint">and {formatCount(r.values.length - VALUES_SHOWN)} more</span>}
            </div>
          </li>
        ))}
      </ul>
    </div>
  );
}
