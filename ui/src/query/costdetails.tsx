// Details of the cost of a response: the time of each stage, and the statistics of the engine.
import type { APIResult } from "../api/client.ts";
import type { QueryData } from "../api/types.ts";
import type { QueryStats } from "../lib/cost.ts";
import { formatElapsed } from "../lib/duration.ts";
import { formatBytes, formatCount } from "../lib/format.ts";

type Counted = QueryData & { stats?: QueryStats };

interface Props { result: APIResult<QueryData>; counted: boolean; onCount: (on: boolean) => void }

const NAMES: Readonly<Record<string, string>> = { queue: "Waiting in the queue", slots: "Waiting for slots", cache: "Reading the cache", fetch: "Waiting for downstream" };

const TIMINGS: readonly (readonly [string, string])[] = [
  ["execQueueTime", "Waiting for the engine"], ["queryPreparationTime", "Preparing"], ["innerEvalTime", "Evaluating"], ["resultSortTime", "Sorting"],
];

export function Details({ result, counted, onCount }: Props) {
  const { stages, cache, engine } = result.cost;
  const stats = (result.data as Counted).stats;
  const most = Math.max(result.ms, ...stages.map((s) => s.ms));
  const [name, reason] = engine.split("; reason=");
  return (
    <div class="cost-details">
      <table>
        <tbody>
          <Row text="From request to response" ms={result.ms} most={most} />
          {stages.map((s, i) => <Row key={`${i}${s.name}`} text={`${NAMES[s.name] ?? s.name}${s.text === "" ? "" : `, ${s.text}`}`} ms={s.ms} most={most} />)}
          {TIMINGS.map(([key, text]) => { const v = stats?.timings?.[key]; return v === undefined ? null : <Row key={key} text={text} ms={v * 1000} most={most} />; })}
        </tbody>
      </table>
      <dl class="cost-facts">
        <div><dt>Response</dt><dd>{formatBytes(result.bytes)}, uncompressed</dd></div>
        {cache !== "" && <div><dt>Cache of the frontend</dt><dd>{cache}</dd></div>}
        {name !== "" && <div><dt>Engine</dt><dd>{name}{reason && <span class="hint"> {reason}</span>}</dd></div>}
        {stats?.samples?.totalQueryableSamples !== undefined && <div><dt>Samples read</dt><dd>{formatCount(stats.samples.totalQueryableSamples)}</dd></div>}
        {stats?.samples?.peakSamples !== undefined && <div><dt>Samples at once</dt><dd>{formatCount(stats.samples.peakSamples)}</dd></div>}
      </dl>
      <label class="check"><input type="checkbox" checked={counted} onChange={(e) => onCount(e.currentTarget.checked)} />Let the engine count</label>
    </div>
  );
}

function Row({ text, ms, most }: { text: string; ms: number; most: number }) {
  return <tr><th scope="row">{text}</th><td class="cost-bar"><span style={{ width: `${most > 0 ? (100 * ms) / most : 0}%` }} /></td><td class="num">{formatElapsed(ms)}</td></tr>;
}
