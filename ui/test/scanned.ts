// A range query's result as the page gets it: as JSON, in chunks, scanned.
import { Scanner, type Scanned } from "../src/api/scan.ts";
import type { Matrix, MatrixSeries } from "../src/lib/matrix.ts";
import type { Grid } from "../src/lib/step.ts";

export const NO_WORKER = (): never => { throw new Error("no workers here"); };

export async function scanBytes(bytes: Uint8Array<ArrayBuffer>, grid: Grid, chunk = bytes.length, columns = false): Promise<Scanned> {
  const sink = await new Scanner(NO_WORKER).open(grid, columns);
  for (let i = 0; i < bytes.length; i += chunk) await sink.write(bytes.slice(i, i + chunk));
  return sink.end();
}

export async function scanned(result: readonly MatrixSeries[], grid: Grid, chunk?: number): Promise<Matrix> {
  const text = JSON.stringify({ status: "success", data: { resultType: "matrix", result } });
  return (await scanBytes(new TextEncoder().encode(text), grid, chunk)).matrix;
}

/** Columns for comparison: gaps are null. */
export const plain = (values: readonly Float64Array[]): (number | null)[][] => values.map((c) => Array.from(c, (v) => (Number.isNaN(v) ? null : v)));
