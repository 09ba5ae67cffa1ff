// The queries that are running, with what they have read so far. With the admin API they can be ended.
import { useState } from "preact/hooks";
import { APIError } from "../api/client.ts";
import { useAPI, useAutoRefresh, useServer } from "../api/hooks.ts";
import { formatBytes, formatCount } from "../lib/format.ts";
import { Empty, Failure, Progress } from "../parts/small.tsx";

const REFRESH_MS = 2000;

interface Running {
  id: string; kind: string; query: string; seconds: number; stage: string; client: string; userAgent: string; tenant?: string;
  estimatedSamples?: number; series: number; samples: number; chunkBytes: number;
}

export function Queries() {
  const server = useServer();
  const [tick, setTick] = useState(0);
  const [failure, setFailure] = useState<Error | null>(null);
  const refresh = () => setTick((n) => n + 1);
  const { result, error, loading, reload } = useAPI<{ cancelable: boolean; queries: Running[] }>("queries/running", {}, tick);
  useAutoRefresh(REFRESH_MS, refresh);
  if (error instanceof APIError && error.status === 404) return <Empty title="This server does not list its queries" />;
  const end = (id: string) => {
    setFailure(null);
    // A query that has ended meanwhile is what was wanted.
    server.post(`queries/running/${id}/cancel`).catch((e: Error) => { if (!(e instanceof APIError && e.status === 404)) setFailure(e); }).finally(refresh);
  };
  const queries = result?.data.queries ?? [];
  return (
    <>
      <Progress on={loading && !result} />
      {error && <Failure error={error} onRetry={reload} />}
      {failure && <Failure error={failure} />}
      {result && queries.length === 0 && <Empty title="No query is running" />}
      {queries.length > 0 && (
        <section class="card pool" aria-label="Running queries">
          <h2>Running queries</h2>
          <div class="table-scroll">
            <table class="data targets">
              <thead><tr><th scope="col">Query</th><th scope="col">Client</th><th scope="col">Stage</th><th scope="col" class="num">Seconds</th><th scope="col" class="num">Series</th><th scope="col" class="num">Samples</th><th scope="col" class="num">Chunks</th><th scope="col" aria-label="End" /></tr></thead>
              <tbody>
                {queries.map((q) => (
                  <tr key={q.id}>
                    <td class="endpoint"><code>{q.query}</code></td>
                    <td title={q.userAgent}>{q.client}{q.tenant ? `, ${q.tenant}` : ""}</td>
                    <td>{q.stage}</td>
                    <td class="num">{q.seconds.toFixed(1)}</td>
                    <td class="num">{formatCount(q.series)}</td>
                    <td class="num" title={q.estimatedSamples ? `at most ${formatCount(q.estimatedSamples)} by estimate` : undefined}>{formatCount(q.samples)}</td>
                    <td class="num">{formatBytes(q.chunkBytes)}</td>
                    <td>{result?.data.cancelable && <button type="button" class="button" onClick={() => end(q.id)}>End</button>}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {result && !result.data.cancelable && <p class="hint rules-more">With <code>--web.enable-admin-api</code> a query can be ended here.</p>}
        </section>
      )}
    </>
  );
}
