// Details of the cost of a response: the time of each stage, and the statistics of the engine.
import "../style/costdetails.css";
import type { APIResult } from "../api/client.ts";
import type { QueryData } from "../api/types.ts";
import { goDurationMS, parseServerTiming, type Analysis, type QueryStats, type StoreCost } from "../lib/cost.ts";
import { formatElapsed } from "../lib/duration.ts";
import { formatBytes, formatCount } from "../lib/format.ts";

type Counted = QueryData & { stats?: QueryStats; analysis?: Analysis };

interface Props { result: APIResult<QueryData>; counted: boolean; onCount: (on: boolean) => void }

const NAMES: Readonly<Record<string, string>> = { queue: "Waiting in the queue", slots: "Waiting for slots", cache: "Reading the cache", fetch: "Waiting for downstream", splice: "Joining responses" };

const TIMINGS: readonly (readonly [string, string])[] = [
  ["execQueueTime", "Waiting for the engine"], ["queryPreparationTime", "Preparing"], ["innerEvalTime", "Evaluating"], ["resultSortTime", "Sorting"],
];

export function Details({ result, counted, onCount }: Props) {
  const { timing, cache, engine } = result.cost;
  const { stats, analysis } = result.data as Counted;
  const stages = parseServerTiming(timing);
  const most = Math.max(result.ms, ...stages.map((s) => s.ms));
  const [name, reason] = engine.split("; reason=");
  return (
    <div class="cost-details">
      <table>
        <tbody>
          <Row text="Total" ms={result.ms} most={most} />
          {stages.map((s, i) => <Row key={`${i}${s.name}`} text={`${NAMES[s.name] ?? s.name}${s.text === "" ? "" : `, ${s.text}`}`} ms={s.ms} most={most} />)}
          {TIMINGS.map(([key, text]) => { const v = stats?.timings?.[key]; return v === undefined ? null : <Row key={key} text={text} ms={v * 1000} most={most} />; })}
        </tbody>
      </table>
      <dl class="cost-facts">
        <div><dt>Response</dt><dd>{formatBytes(result.bytes)}, uncompressed</dd></div>
        {cache !== "" && <div><dt>Cache of the frontend</dt><dd>{cache}</dd></div>}
        {name !== "" && <div><dt>Engine</dt><dd>{name}{reason && <span class="hint"> {reason}</span>}</dd></div>}
        {stats?.samples?.totalQueryableSamples !== undefined && <div><dt>Samples read</dt><dd>{formatCount(stats.samples.totalQueryableSamples)}</dd></div>}
        {stats?.samples?.peakSamples !== undefined && <div><dt>Peak samples</dt><dd>{formatCount(stats.samples.peakSamples)}</dd></div>}
      </dl>
      {(analysis?.fanout ?? []).length > 0 && <Stores of={analysis!.fanout!} />}
      <label class="check"><input type="checkbox" checked={counted} onChange={(e) => onCount(e.currentTarget.checked)} />Include engine statistics</label>
    </div>
  );
}

const STORES_SHOWN = 30;

/** What each store sent, the slowest first. */
function Stores({ of }: { of: readonly StoreCost[] }) {
  const rows = of.map((s) => ({ ...s, ms: goDurationMS(s.duration ?? "") || 0 })).sort((a, b) => b.ms - a.ms || (b.bytesProcessed ?? 0) - (a.bytesProcessed ?? 0));
  const most = Math.max(...rows.map((r) => r.ms));
  return (
    <>
      <div class="table-scroll store-costs" tabIndex={0} role="region" aria-label="Cost by store">
        <table>
          <thead><tr><th scope="col">Store</th><th scope="col" colSpan={2}>Time</th><th scope="col" class="num">Bytes</th><th scope="col" class="num">Series</th><th scope="col" class="num">Chunks</th></tr></thead>
          <tbody>
            {rows.slice(0, STORES_SHOWN).map((s) => (
              <tr key={s.endpointAddr}>
                <th scope="row">{s.endpointAddr}</th><td class="cost-bar"><span style={{ width: `${most > 0 ? (100 * s.ms) / most : 0}%` }} /></td><td class="num">{formatElapsed(s.ms)}</td>
                <td class="num">{formatBytes(s.bytesProcessed ?? 0)}</td><td class="num">{formatCount(s.series ?? 0)}</td><td class="num">{formatCount(s.chunks ?? 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > STORES_SHOWN && <p class="hint">The {STORES_SHOWN} slowest of {formatCount(rows.length)} stores.</p>}
    </>
  );
}

function Row({ text, ms, most }: { text: string; ms: number; most: number }) {
  return <tr><th scope="row">{text}</th><td class="cost-bar"><span style={{ width: `${most > 0 ? (100 * ms) / most : 0}%` }} /></td><td class="num">{formatElapsed(ms)}</td></tr>;
}
