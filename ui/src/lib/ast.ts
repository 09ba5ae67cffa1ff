// The syntax tree of a query, as /api/v1/parse_query sends it: back to text, its children, and how two sides of an operator
// match. Pure: the tree view requests each node's result.
import { formatDuration } from "./duration.ts";
import { escapeValue, type Labels } from "./labels.ts";

export interface Matcher { name: string; type: string; value: string }
export interface Matching { card: string; labels: string[]; on: boolean; include: string[] }

interface SelectorPart {
  name: string; matchers: Matcher[] | null; offset: number; timestamp: number | null; startOrEnd: string | null; range?: number; step?: number;
  anchored?: boolean; smoothed?: boolean;
}

export type Node =
  | { type: "aggregation"; op: string; expr: Node; param: Node | null; grouping: string[] | null; without: boolean }
  | { type: "binaryExpr"; op: string; lhs: Node; rhs: Node; matching: Matching | null; bool: boolean }
  | { type: "call"; func: { name: string }; args: Node[] | null }
  | ({ type: "matrixSelector" } & SelectorPart)
  | ({ type: "vectorSelector" } & SelectorPart)
  | ({ type: "subquery"; expr: Node } & Omit<SelectorPart, "name" | "matchers">)
  | { type: "numberLiteral"; val: string }
  | { type: "stringLiteral"; val: string }
  | { type: "parenExpr"; expr: Node }
  | { type: "unaryExpr"; op: string; expr: Node };

export function childrenOf(n: Node): Node[] {
  switch (n.type) {
    case "aggregation": return n.param ? [n.param, n.expr] : [n.expr];
    case "binaryExpr": return [n.lhs, n.rhs];
    case "call": return n.args ?? [];
    case "subquery": case "parenExpr": case "unaryExpr": return [n.expr];
    default: return [];
  }
}

/** What a node is called in the tree: its own part of the expression, with … for its children. */
export function titleOf(n: Node): string {
  switch (n.type) {
    case "aggregation": return `${n.op}${groupingText(n)}(…)`;
    case "binaryExpr": return `… ${n.op}${n.bool ? " bool" : ""}${matchingText(n.matching)} …`;
    case "call": return `${n.func.name}(…)`;
    case "parenExpr": return "(…)";
    case "unaryExpr": return `${n.op}…`;
    case "subquery": return `…${rangeText(n)}`;
    default: return textOf(n);
  }
}

export function textOf(n: Node): string {
  switch (n.type) {
    case "aggregation": return `${n.op}${groupingText(n)}(${n.param ? `${textOf(n.param)}, ` : ""}${textOf(n.expr)})`;
    case "binaryExpr": return `${textOf(n.lhs)} ${n.op}${n.bool ? " bool" : ""}${matchingText(n.matching)} ${textOf(n.rhs)}`;
    case "call": return `${n.func.name}(${(n.args ?? []).map(textOf).join(", ")})`;
    case "vectorSelector": return selectorText(n) + modifiers(n);
    case "matrixSelector": return `${selectorText(n)}[${formatDuration(n.range ?? 0)}]${modifiers(n)}`;
    case "subquery": return `${textOf(n.expr)}${rangeText(n)}`;
    case "numberLiteral": return n.val;
    case "stringLiteral": return `"${escapeValue(n.val)}"`;
    case "parenExpr": return `(${textOf(n.expr)})`;
    case "unaryExpr": return `${n.op}${textOf(n.expr)}`;
  }
}

const rangeText = (n: { range?: number; step?: number } & Pick<SelectorPart, "offset" | "timestamp" | "startOrEnd">): string =>
  `[${formatDuration(n.range ?? 0)}:${n.step ? formatDuration(n.step) : ""}]${modifiers(n)}`;

function groupingText(n: { grouping: string[] | null; without: boolean }): string {
  const names = n.grouping ?? [];
  if (names.length === 0 && !n.without) return "";
  return ` ${n.without ? "without" : "by"} (${names.map(nameText).join(", ")}) `;
}

const nameText = (name: string): string => (/^[a-zA-Z_]\w*$/.test(name) ? name : `"${escapeValue(name)}"`);

function matchingText(m: Matching | null): string {
  if (!m) return "";
  const list = (names: string[]) => `(${names.map(nameText).join(", ")})`;
  const on = m.on ? ` on ${list(m.labels)}` : m.labels.length > 0 ? ` ignoring ${list(m.labels)}` : "";
  const group = m.card === "many-to-one" ? "group_left" : m.card === "one-to-many" ? "group_right" : "";
  return `${on}${group === "" ? "" : ` ${group} ${list(m.include ?? [])}`}`;
}

function selectorText(n: SelectorPart): string {
  const matchers = (n.matchers ?? []).filter((m) => !(m.name === "__name__" && m.type === "=" && n.name !== ""));
  const plain = n.name === "" || /^[a-zA-Z_:][\w:]*$/.test(n.name);
  const parts = [...(plain ? [] : [`"${escapeValue(n.name)}"`]), ...matchers.map((m) => `${nameText(m.name)}${m.type}"${escapeValue(m.value)}"`)];
  return `${plain ? n.name : ""}${parts.length > 0 ? `{${parts.join(", ")}}` : plain && n.name !== "" ? "" : "{}"}`;
}

function modifiers(n: Pick<SelectorPart, "offset" | "timestamp" | "startOrEnd"> & { anchored?: boolean; smoothed?: boolean }): string {
  const at = n.startOrEnd ? ` @ ${n.startOrEnd}()` : n.timestamp !== null && n.timestamp !== undefined ? ` @ ${n.timestamp / 1000}` : "";
  const offset = n.offset > 0 ? ` offset ${formatDuration(n.offset)}` : n.offset < 0 ? ` offset -${formatDuration(-n.offset)}` : "";
  return `${n.anchored ? " anchored" : ""}${n.smoothed ? " smoothed" : ""}${at}${offset}`;
}

export interface MatchReport { groups: number; leftOnly: Labels[]; rightOnly: Labels[]; /** Groups with several series on a side that allows one. */ crowded: number }

/** How series of both sides find each other, by the labels that count. */
export function matchSides(m: Matching, left: readonly Labels[], right: readonly Labels[]): MatchReport {
  const key = (l: Labels): string => JSON.stringify(m.on
    ? m.labels.map((name) => l[name] ?? "")
    : Object.entries(l).filter(([k]) => k !== "__name__" && !m.labels.includes(k)).sort(([a], [b]) => (a < b ? -1 : 1)));
  const [a, b] = [groupBy(left, key), groupBy(right, key)];
  const shared = [...a.keys()].filter((k) => b.has(k));
  const many = { left: m.card === "many-to-one" || m.card === "many-to-many", right: m.card === "one-to-many" || m.card === "many-to-many" };
  return {
    groups: shared.length,
    leftOnly: [...a].filter(([k]) => !b.has(k)).flatMap(([, l]) => l),
    rightOnly: [...b].filter(([k]) => !a.has(k)).flatMap(([, l]) => l),
    crowded: shared.filter((k) => (!many.left && a.get(k)!.length > 1) || (!many.right && b.get(k)!.length > 1)).length,
  };
}

function groupBy(list: readonly Labels[], key: (l: Labels) => string): Map<string, Labels[]> {
  const out = new Map<string, Labels[]>();
  for (const l of list) { const k = key(l); const g = out.get(k); if (g) g.push(l); else out.set(k, [l]); }
  return out;
}

/** Labels by the number of their values, most first. */
export function cardinality(sets: readonly Labels[]): { name: string; values: number }[] {
  const values = new Map<string, Set<string>>();
  for (const s of sets) for (const [k, v] of Object.entries(s)) { const set = values.get(k); if (set) set.add(v); else values.set(k, new Set([v])); }
  return [...values].map(([name, set]) => ({ name, values: set.size })).sort((x, y) => y.values - x.values || (x.name < y.name ? -1 : 1));
}
