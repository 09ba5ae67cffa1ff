// Decodes a differential flame graph of the profile API. A node is seven integers: gap, total and
// self of the left side, the same of the right side, and the index of the name. The width of a box is the sum of the shares of both
// sides.
import type { Exact, Flame, FlameNode } from "./flame.ts";

type Int = string | number;

export interface WireFlameDiff { names?: string[]; levels?: { values?: Int[] }[]; leftTicks?: Int; rightTicks?: Int }

const INTS_A_NODE = 7;

/** The totals of both sides by node are `left` and `right`. */
export interface DiffNode extends FlameNode { left: number; right: number; leftSelf: number; rightSelf: number }

export interface FlameDiff extends Flame { left: number; right: number }

/**
 * Each side is scaled to the same total: ranges of different traffic then compare by where they spent it, not by how much.
 * A node's place is the sum of both sides' scaled places.
 */
export function decodeFlameDiff(wire: WireFlameDiff | undefined): FlameDiff {
  const [left, right] = [Number(wire?.leftTicks ?? 0), Number(wire?.rightTicks ?? 0)];
  const [l, r] = [left > 0 ? 1 / left : 0, right > 0 ? 1 / right : 0];
  const levels = (wire?.levels ?? []).map((level, depth) => decodeLevel((level.values ?? []).map(Number), depth, l, r));
  return { names: wire?.names ?? [], levels, total: levels[0]?.reduce((n, x) => n + x.total, 0) ?? 0, left, right };
}

function decodeLevel(ints: readonly number[], level: number, l: number, r: number): DiffNode[] {
  const nodes: DiffNode[] = [];
  let [leftEnd, rightEnd] = [0, 0];
  for (let i = 0; i + INTS_A_NODE <= ints.length; i += INTS_A_NODE) {
    const [gapL, left, leftSelf, gapR, right, rightSelf, name] = ints.slice(i, i + INTS_A_NODE) as [number, number, number, number, number, number, number];
    const [startL, startR] = [leftEnd + gapL, rightEnd + gapR];
    nodes.push({ start: startL * l + startR * r, total: left * l + right * r, self: leftSelf * l + rightSelf * r, name, level, left, right, leftSelf, rightSelf });
    [leftEnd, rightEnd] = [startL + left, startR + right];
  }
  return nodes;
}

/** How much larger the share of a node is on the right: -1 is gone, 0 the same, 1 new. */
export function change(left: number, right: number, d: FlameDiff): number {
  const [a, b] = [d.left > 0 ? left / d.left : 0, d.right > 0 ? right / d.right : 0];
  return a + b === 0 ? 0 : (b - a) / (a + b);
}

export interface FunctionChange { name: string; left: number; right: number; /** Difference of the shares of the wholes, -1 to 1. */ delta: number }

/** What each function costs by itself on both sides, the largest change first. */
export function changedFunctions(d: FlameDiff): FunctionChange[] {
  const rows = d.names.map((name) => ({ name, left: 0, right: 0, delta: 0 }));
  for (const level of d.levels) {
    for (const n of level as readonly DiffNode[]) {
      const row = rows[n.name];
      if (!row || n.level === 0) continue;
      row.left += n.leftSelf;
      row.right += n.rightSelf;
    }
  }
  return byChange(rows, d.left, d.right);
}

/** The same from whole stacks of both sides, also where the graph is cut. */
export function changedExactly(left: Exact, right: Exact): FunctionChange[] {
  const rows = new Map<string, FunctionChange>();
  const of = (name: string) => { let r = rows.get(name); if (!r) rows.set(name, (r = { name, left: 0, right: 0, delta: 0 })); return r; };
  for (const c of left.costs) of(c.name).left = c.self;
  for (const c of right.costs) of(c.name).right = c.self;
  return byChange([...rows.values()], left.total, right.total);
}

function byChange(rows: FunctionChange[], left: number, right: number): FunctionChange[] {
  for (const r of rows) r.delta = (right > 0 ? r.right / right : 0) - (left > 0 ? r.left / left : 0);
  return rows.filter((r) => r.left > 0 || r.right > 0).sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta) || (a.name < b.name ? -1 : 1));
}
