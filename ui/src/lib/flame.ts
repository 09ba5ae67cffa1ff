// Decodes a flame graph of the profile API, and computes the positions of nodes, the nodes that match a search,
// and the cost of each function. Pure: no canvas, no server.
//
// On the wire a level is four integers a node: the gap since the end of the previous node of the level, the total, the
// node's own part of it, and the index of its name. Decoded nodes have absolute positions.

/** 64-bit integers come as text. */
type Int = string | number;

export interface WireFlameGraph { names?: string[]; levels?: { values?: Int[] }[]; total?: Int; maxSelf?: Int }

export interface FlameNode { start: number; total: number; self: number; name: number; level: number }

export interface Flame {
  names: readonly string[];
  /** By depth, each from left to right. The first holds the root alone. */
  levels: readonly (readonly FlameNode[])[];
  total: number;
}

export const EMPTY_FLAME: Flame = { names: [], levels: [], total: 0 };

const INTS_A_NODE = 4;

export function decodeFlame(wire: WireFlameGraph | undefined): Flame {
  const names = wire?.names ?? [];
  const levels = (wire?.levels ?? []).map((l, depth) => decodeLevel((l.values ?? []).map(Number), depth));
  return { names, levels, total: Number(wire?.total ?? 0) };
}

function decodeLevel(ints: readonly number[], level: number): FlameNode[] {
  const nodes: FlameNode[] = [];
  let end = 0;
  for (let i = 0; i + INTS_A_NODE <= ints.length; i += INTS_A_NODE) {
    const [gap, total, self, name] = ints.slice(i, i + INTS_A_NODE) as [number, number, number, number];
    const start = end + gap;
    nodes.push({ start, total, self, name, level });
    end = start + total;
  }
  return nodes;
}

export const rootOf = (flame: Flame): FlameNode | null => flame.levels[0]?.[0] ?? null;

/** The node of the level that covers the place, by bisection. */
export function nodeAt(flame: Flame, level: number, at: number): FlameNode | null {
  const nodes = flame.levels[level] ?? [];
  let [low, high] = [0, nodes.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const n = nodes[middle]!;
    if (at < n.start) high = middle - 1;
    else if (at >= n.start + n.total) low = middle + 1;
    else return n;
  }
  return null;
}

/** From the root down to the node: its callers, and itself. */
export function pathTo(flame: Flame, node: FlameNode): FlameNode[] {
  const path: FlameNode[] = [];
  for (let level = 0; level < node.level; level++) {
    const n = nodeAt(flame, level, node.start);
    if (n) path.push(n);
  }
  return [...path, node];
}

const MARKS = 36 ** 4;

const markOf = (name: string): string => (hash(name) % MARKS).toString(36);

/** The way from the root to a node as text for an address: its marks differ between siblings. "" is the root. */
export const focusMark = (flame: Flame, node: FlameNode): string => pathTo(flame, node).slice(1).map((n) => markOf(flame.names[n.name] ?? "")).join(".");

/** The node that such a text leads to, or null where this graph has no such calls. */
export function focusOf(flame: Flame, text: string): FlameNode | null {
  let at = rootOf(flame);
  if (text === "" || !at) return null;
  for (const mark of text.split(".")) {
    const parent: FlameNode = at;
    at = childrenOf(flame, parent).find((n) => markOf(flame.names[n.name] ?? "") === mark) ?? null;
    if (!at) return null;
  }
  return at;
}

/** Children of a node, from the level beneath. */
export function childrenOf(flame: Flame, n: FlameNode): readonly FlameNode[] {
  const below = flame.levels[n.level + 1] ?? [];
  let [low, high] = [0, below.length];
  while (low < high) { const m = (low + high) >> 1; if (below[m]!.start < n.start) low = m + 1; else high = m; }
  let end = low;
  while (end < below.length && below[end]!.start < n.start + n.total) end++;
  return below.slice(low, end);
}

/** What the server joins where there are too many functions. */
export const OTHER = "other";

/** How much of the whole, or of what is below a node, is in boxes that the server has joined. */
export function otherShare(flame: Flame, below: FlameNode | null = rootOf(flame)): number {
  const other = flame.names.indexOf(OTHER);
  if (other < 0 || !below || below.total <= 0) return 0;
  let sum = 0;
  for (const level of flame.levels.slice(below.level)) for (const n of level) if (n.name === other && n.start >= below.start && n.start < below.start + below.total) sum += n.total;
  return sum / below.total;
}

export interface WireFunctions { functions?: { name?: string; self?: Int; total?: Int }[]; total?: Int; count?: Int }

/** Functions as the server adds them up from whole stacks, however much of them a graph has. */
export interface Exact { costs: FunctionCost[]; /** How many there are: more than costs where the server has left out the smallest. */ count: number; total: number }

export const decodeFunctions = (w: WireFunctions): Exact => ({
  costs: (w.functions ?? []).map((f) => ({ name: f.name ?? "", self: Number(f.self ?? 0), total: Number(f.total ?? 0) })),
  count: Number(w.count ?? 0), total: Number(w.total ?? 0),
});

/** The packages with the largest own shares: what a colour stands for. */
export function topPackages(costs: readonly FunctionCost[], most: number): { name: string; self: number }[] {
  const sums = new Map<string, number>();
  for (const c of costs) { const p = packageOf(c.name); sums.set(p, (sums.get(p) ?? 0) + c.self); }
  return [...sums].map(([name, self]) => ({ name, self })).filter((p) => p.self > 0 && p.name !== OTHER).sort((a, b) => b.self - a.self || (a.name < b.name ? -1 : 1)).slice(0, most);
}

const escapeRegExp = (text: string): string => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");

/** The text that finds all functions of a package. */
export const inPackage = (name: string): string => `/^${escapeRegExp(name)}(\\.|$)/`;

export interface FunctionCost { name: string; self: number; total: number }

/** What each function costs by itself and with what it calls. A function that calls itself counts once. */
export function topFunctions(flame: Flame): FunctionCost[] {
  const costs = flame.names.map((name) => ({ name, self: 0, total: 0 }));
  // The end of the outermost open call of each function, while its subtree is walked.
  const open = new Map<number, number>();
  walk(flame, (node, enter) => {
    if (node.level === 0) return;
    const cost = costs[node.name];
    if (!cost) return;
    if (!enter) {
      if (open.get(node.name) === node.level) open.delete(node.name);
      return;
    }
    cost.self += node.self;
    if (open.has(node.name)) return;
    open.set(node.name, node.level);
    cost.total += node.total;
  });
  return costs.filter((c) => c.total > 0);
}

/** The share of the whole below nodes whose names match; nested matches count once. */
export function matchedTotal(flame: Flame, matches: (name: number) => boolean): number {
  let sum = 0;
  let inside = 0;
  walk(flame, (node, enter) => {
    if (node.level === 0 || !matches(node.name)) return;
    if (enter) {
      if (inside++ === 0) sum += node.total;
    } else inside--;
  });
  return sum;
}

/** Every node on the way down and again on the way up, left to right; no recursion, for stacks can be deep. */
function walk(flame: Flame, visit: (node: FlameNode, enter: boolean) => void): void {
  const at = flame.levels.map(() => 0);
  const stack: FlameNode[] = [];
  const root = rootOf(flame);
  if (!root) return;
  visit(root, true);
  stack.push(root);
  while (stack.length > 0) {
    const parent = stack[stack.length - 1]!;
    const level = parent.level + 1;
    const child = flame.levels[level]?.[at[level]!];
    if (child && child.start < parent.start + parent.total) {
      at[level]!++;
      visit(child, true);
      stack.push(child);
    } else {
      stack.pop();
      visit(parent, false);
    }
  }
}

/** The text that finds a function by its whole name and no other. */
export const exactly = (name: string): string => `/^${escapeRegExp(name)}$/`;

/** A test for names: plain text is found anywhere and in any case, /text/ is a regular expression. Null finds nothing. */
export function nameTest(text: string): ((name: string) => boolean) | null {
  const t = text.trim();
  if (t === "") return null;
  const m = /^\/(.+)\/$/.exec(t);
  if (!m) {
    const low = t.toLowerCase();
    return (name) => name.toLowerCase().includes(low);
  }
  try {
    const re = new RegExp(m[1]!, "i");
    return (name) => re.test(name);
  } catch {
    return null;
  }
}

/** "github.com/a/b/tsdb.(*Head).Append" is "tsdb.(*Head).Append": what is left where room is short. */
export function shortName(name: string): string {
  const end = name.search(/[([<]/); // slashes behind it belong to type parameters and arguments
  const head = end < 0 ? name : name.slice(0, end);
  return name.slice(head.lastIndexOf("/") + 1);
}

/** What a function belongs to; functions of one package get one colour. */
export function packageOf(name: string): string {
  const cut = name.length - shortName(name).length;
  const dot = name.indexOf(".", cut);
  return dot < 0 ? name : name.slice(0, dot);
}

/** A stable number for a text (FNV-1a). */
export function hash(text: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return h >>> 0;
}
