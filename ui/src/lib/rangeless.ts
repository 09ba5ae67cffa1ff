// A graph of `x[5m]`: raw samples of a range have no value at a step, so the selector is drawn without its range.

const ENDING = /\[[^\[\]"'`]+\]((?:\s*(?:offset\s+-?[\w()+* /-]+|@\s*(?:-?[\d.]+|start\(\)|end\(\))))*)\s*$/;

/** The expression without the range at its end, and null where it has none. */
export function withoutRange(expr: string): string | null {
  const m = ENDING.exec(expr);
  return m === null ? null : expr.slice(0, m.index) + (m[1] ?? "");
}
