// The stores of a querier, as /api/v1/stores lists them. A server that reads its own storage has none.
import { APIError } from "../api/client.ts";
import { useAPI } from "../api/hooks.ts";
import type { Labels } from "../lib/labels.ts";
import { formatAgo } from "../lib/duration.ts";
import { formatStored } from "../lib/time.ts";
import { Empty, Failure, LabelList, Progress } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";

interface Store { name: string; lastCheck: string; lastError: string | null; labelSets: Labels[] | null; minTime: number; maxTime: number }
type StoresData = Record<string, Store[] | null>;

export function Stores() {
  const { result, error, loading, reload } = useAPI<StoresData>("stores");
  if (error instanceof APIError && error.status === 404) {
    return <Empty title="This server has no stores">It reads its own storage. A <code>ferula query</code> reads from stores.</Empty>;
  }
  const groups = Object.entries(result?.data ?? {}).filter(([, stores]) => stores && stores.length > 0).sort(([a], [b]) => (a < b ? -1 : 1));
  return (
    <>
      <Progress on={loading && !result} />
      {error && <Failure error={error} onRetry={reload} />}
      {groups.map(([kind, stores]) => <Kind key={kind} kind={kind} stores={stores!} />)}
      {result && groups.length === 0 && <Empty title="No stores">No endpoint is known; <code>--endpoint</code> names them.</Empty>}
    </>
  );
}

function Kind({ kind, stores }: { kind: string; stores: readonly Store[] }) {
  const { zone } = usePrefs();
  const down = stores.filter((s) => s.lastError).length;
  return (
    <section class="card pool" aria-label={`Stores of kind ${kind}`}>
      <h2>{kind}<span class={`badge ${down > 0 ? "down" : "up"}`}>{stores.length - down} of {stores.length} up</span></h2>
      <div class="table-scroll">
        <table class="data targets stores">
          <thead><tr><th scope="col">Address</th><th scope="col">State</th><th scope="col">Labels</th><th scope="col">From – to</th><th scope="col" class="num">Last check</th></tr></thead>
          <tbody>
            {stores.map((s) => (
              <tr key={s.name}>
                <td class="endpoint">{s.name}{s.lastError && <div class="target-error">{s.lastError}</div>}</td>
                <td><span class={`badge ${s.lastError ? "down" : "up"}`}>{s.lastError ? "down" : "up"}</span></td>
                <td>{(s.labelSets ?? []).map((l) => <LabelList key={JSON.stringify(l)} labels={l} />)}</td>
                <td>{formatStored(s.minTime, s.maxTime, zone)}</td>
                <td class="num">{formatAgo(Date.now() - Date.parse(s.lastCheck))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
