// Views computed from a flame graph: all callers and callees of one function, recursive functions collapsed, and
// the stacks as text.
import { childrenOf, rootOf, type Flame, type FlameNode } from "./flame.ts";

interface Tree { name: number; total: number; self: number; children: Map<number, Tree> }

const branch = (name: number): Tree => ({ name, total: 0, self: 0, children: new Map() });

function child(of: Tree, name: number): Tree {
  let c = of.children.get(name);
  if (!c) of.children.set(name, (c = branch(name)));
  return c;
}

/** Every node with the way to it from the root. No recursion: stacks are deep. */
function walk(flame: Flame, visit: (n: FlameNode, path: readonly FlameNode[]) => void): void {
  const root = rootOf(flame);
  if (!root) return;
  const stack: { n: FlameNode; depth: number }[] = [{ n: root, depth: 0 }];
  const path: FlameNode[] = [];
  while (stack.length > 0) {
    const { n, depth } = stack.pop()!;
    path.length = depth;
    visit(n, path);
    path.push(n);
    const below = childrenOf(flame, n);
    for (let i = below.length - 1; i >= 0; i--) stack.push({ n: below[i]!, depth: depth + 1 });
  }
}

function flatten(tree: Tree, names: readonly string[]): Flame {
  const levels: FlameNode[][] = [];
  let row: { t: Tree; start: number }[] = [{ t: tree, start: 0 }];
  for (let level = 0; row.length > 0; level++) {
    const below: typeof row = [];
    levels.push(row.map(({ t, start }) => {
      let at = start;
      // The largest first, so that the most expensive function is at the left.
      for (const c of [...t.children.values()].sort((a, b) => b.total - a.total)) { below.push({ t: c, start: at }); at += c.total; }
      return { start, total: t.total, self: t.self, name: t.name, level };
    }));
    row = below;
  }
  return { names, levels, total: tree.total };
}

/** Callees of all calls of the function, merged, and its callers with the function as their root; null where it is not called. */
export function sandwich(flame: Flame, name: string): { callers: Flame; callees: Flame } | null {
  const wanted = flame.names.indexOf(name);
  if (wanted < 0) return null;
  const [up, down] = [branch(wanted), branch(wanted)];
  let found = false;
  walk(flame, (n, path) => {
    if (n.level === 0) return;
    // Only the outermost call counts, because its total contains the recursive calls.
    const outer = path.findIndex((p) => p.level > 0 && p.name === wanted);
    if (n.name === wanted && outer < 0) {
      found = true;
      up.total += n.total;
      down.total += n.total;
      down.self += n.self;
      let at = up;
      for (let i = path.length - 1; i > 0; i--) { at = child(at, path[i]!.name); at.total += n.total; }
      at.self += n.total;
    } else if (outer >= 0) {
      let at = down;
      for (const p of path.slice(outer + 1)) at = child(at, p.name);
      at = child(at, n.name);
      at.total += n.total;
      at.self += n.self;
    }
  });
  return found ? { callers: flatten(up, flame.names), callees: flatten(down, flame.names) } : null;
}

/** A function that calls itself directly is one box. */
export function collapseRecursion(flame: Flame): Flame {
  const root = rootOf(flame);
  if (!root) return flame;
  const top = branch(root.name);
  walk(flame, (n, path) => {
    let at = top;
    let last = root.name;
    for (const p of path.slice(1)) { if (p.name !== last) at = child(at, p.name); last = p.name; }
    const same = path.length > 0 && n.name === last && n.level > 0 && path.length > 1;
    const target = n.level === 0 ? top : same ? at : child(at, n.name);
    target.self += n.self;
    if (!same) target.total += n.total;
  });
  return flatten(top, flame.names);
}

/** One line a stack, as flamegraph.pl and speedscope read it: "a;b;c 42". */
export function toFolded(flame: Flame): string {
  const lines: string[] = [];
  walk(flame, (n, path) => {
    if (n.self <= 0 || n.level === 0) return;
    const names = [...path.slice(1), n].map((p) => (flame.names[p.name] ?? "").replace(/[;\r\n]/g, "_"));
    lines.push(`${names.join(";")} ${n.self}`);
  });
  return `${lines.join("\n")}\n`;
}
