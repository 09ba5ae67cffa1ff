// The worker: it scans the chunks of each running request's response.
import { ColumnScan } from "../lib/columnscan.ts";
import { MatrixScan } from "../lib/matrixscan.ts";
import type { FromWorker, Scan, ToWorker } from "./scan.ts";

interface Scope { onmessage: ((e: MessageEvent<ToWorker>) => void) | null; postMessage: (m: FromWorker, transfer?: Transferable[]) => void }
const scope = globalThis as unknown as Scope;

const scans = new Map<number, Scan>();

scope.onmessage = ({ data: m }) => {
  try {
    take(m);
  } catch (e) {
    scans.delete(m.id);
    scope.postMessage({ id: m.id, kind: "failed", message: (e as Error).message });
  }
};

function take(m: ToWorker): void {
  const { id } = m;
  const scan = scans.get(id);
  if (m.kind === "begin") {
    scans.set(id, new (m.columns ? ColumnScan : MatrixScan)(m.grid, (batch) => scope.postMessage({ id, kind: "batch", batch }, [batch.values.buffer, batch.figures.buffer])));
  } else if (m.kind === "chunk") {
    scan?.write(m.bytes);
    scope.postMessage({ id, kind: "taken", bytes: m.bytes.byteLength });
  } else if (m.kind === "end" && scan) {
    scans.delete(id);
    scope.postMessage({ id, kind: "end", rest: scan.end() });
  } else scans.delete(id);
}

scope.postMessage({ kind: "ready" });
