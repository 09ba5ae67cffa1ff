// The cost of the shown response: series, time, bytes, and details on demand.
import type { APIResult } from "../api/client.ts";
import type { QueryData } from "../api/types.ts";
import { formatDuration, formatElapsed } from "../lib/duration.ts";
import { formatBytes, formatCount } from "../lib/format.ts";
import { lazy } from "../parts/lazy.tsx";
import { Popover } from "../parts/popover.tsx";

const Details = lazy(() => import("./costdetails.tsx").then((m) => m.Details), <p class="hint">…</p>);

interface Props { result: APIResult<QueryData>; step: number | null; counted: boolean; onCount: (on: boolean) => void }

function seriesCount(data: QueryData): number {
  if (data.resultType === "range") return data.matrix.names.length;
  return data.resultType === "vector" || data.resultType === "matrix" ? data.result.length : 1;
}

export function CostBar({ result, step, counted, onCount }: Props) {
  return (
    <div class="stats cost">
      <span><b>{formatCount(seriesCount(result.data))}</b> series</span>
      {step !== null && <span title="Time between points">step <b>{formatDuration(step)}</b></span>}
      <span title="Size of the response, uncompressed"><b>{formatBytes(result.bytes)}</b></span>
      <Popover label="What this query cost" buttonClass="link" align="right" button={<b>{formatElapsed(result.ms)}</b>}>
        {() => <Details result={result} counted={counted} onCount={onCount} />}
      </Popover>
    </div>
  );
}
