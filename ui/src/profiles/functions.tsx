// A table of the functions of a flame graph, sorted by cost or by change of cost. The boxes of a cut graph have
// only a part of the cost of small functions, so the figures are then those that the server adds up from whole stacks.
import { useMemo } from "preact/hooks";
import { topFunctions, type Exact, type Flame, type FunctionCost } from "../lib/flame.ts";
import { changedExactly, changedFunctions, type FlameDiff } from "../lib/flamediff.ts";
import { formatCount } from "../lib/format.ts";
import { formatShare, formatUnit } from "../lib/units.ts";
import { Empty } from "../parts/small.tsx";
import { isDiff } from "./flamecanvas.ts";

/** Of one graph, or of both sides of a difference. */
export type ExactOf = readonly [Exact] | readonly [Exact, Exact] | null;

interface Props { flame: Flame; /** What shares are of. */ whole: number; exact: ExactOf; unit: string; test: ((name: string) => boolean) | null; order: SortKey; onOrder: (by: SortKey) => void; onPick: (name: string) => void; onSandwich: (name: string) => void }

export type SortKey = "name" | "self" | "total";
const ROWS_MAX = 300;

export function Functions(props: Props) {
  return isDiff(props.flame) ? <Changes {...props} flame={props.flame} /> : <Costs {...props} />;
}

function Costs({ flame, whole, exact, unit, test, order: sort, onOrder, onPick, onSandwich }: Props) {
  const costs = useMemo(() => exact?.[0].costs ?? topFunctions(flame), [flame, exact]);
  const matching = useMemo(() => (test ? costs.filter((c) => test(c.name)) : costs), [costs, test]);
  const rows = useMemo(() => [...matching].sort(ordering(sort)).slice(0, ROWS_MAX), [matching, sort]);
  const largest = rows.reduce((most, c) => Math.max(most, c.self), 0);
  const head = (key: SortKey, text: string) => (
    <th scope="col" class={key === "name" ? "" : "num"} aria-sort={sort === key ? (key === "name" ? "ascending" : "descending") : "none"}>
      <button type="button" onClick={() => onOrder(key)}>{text}{sort === key && <span class="arrow">{key === "name" ? "↑" : "↓"}</span>}</button>
    </th>
  );
  return (
    <div class="table-scroll functions-scroll" tabIndex={0} role="region" aria-label="Functions">
      <table class="data functions" data-exact={exact ? "1" : undefined}>
        <thead><tr>{head("name", "Function")}{head("self", "Self")}{head("total", "Total")}</tr></thead>
        <tbody>
          {rows.map((c) => (
            <tr key={c.name}>
              <th scope="row"><Name name={c.name} onPick={onPick} onSandwich={onSandwich} /></th>
              <td class="num bar-cell"><span class="bar" style={{ width: largest > 0 ? `${(100 * c.self) / largest}%` : "0" }} /><span>{formatUnit(c.self, unit)} <i>{formatShare(c.self, whole)}</i></span></td>
              <td class="num">{formatUnit(c.total, unit)} <i>{formatShare(c.total, whole)}</i></td>
            </tr>
          ))}
        </tbody>
      </table>
      {matching.length > rows.length && <p class="note">The first {formatCount(rows.length)} of {formatCount(matching.length)} functions.</p>}
      {rows.length === 0 && <Empty title="No function matches" />}
    </div>
  );
}

function Name({ name, onPick, onSandwich }: { name: string; onPick: (n: string) => void; onSandwich: (n: string) => void }) {
  return (
    <span class="function-cell">
      <button type="button" class="function" title="Find it in the flame graph" onClick={() => onPick(name)}>{name}</button>
      <button type="button" class="link sandwich-link" title="Its callers and callees" aria-label={`Callers and callees of ${name}`} onClick={() => onSandwich(name)}>⇅</button>
    </span>
  );
}

function Changes({ flame, exact, unit, test, onPick }: Props & { flame: FlameDiff }) {
  const all = useMemo(() => (exact?.length === 2 ? changedExactly(exact[0], exact[1]) : changedFunctions(flame)), [flame, exact]);
  const matching = useMemo(() => (test ? all.filter((c) => test(c.name)) : all), [all, test]);
  const points = (v: number) => `${v > 0 ? "+" : v < 0 ? "−" : ""}${Math.abs(100 * v).toFixed(Math.abs(v) < 0.1 ? 2 : 1)} pp`;
  return (
    <div class="table-scroll functions-scroll" tabIndex={0} role="region" aria-label="Functions by change">
      <table class="data functions" data-exact={exact ? "1" : undefined}>
        <thead><tr><th scope="col">Function</th><th scope="col" class="num" title="Self, in the range before">Before</th><th scope="col" class="num" title="Self, in the range after it">After</th><th scope="col" class="num" title="Change of the share of the total, in percentage points">Share, pp</th></tr></thead>
        <tbody>
          {matching.slice(0, ROWS_MAX).map((c) => (
            <tr key={c.name}>
              <th scope="row"><button type="button" class="function" title="Find it in the flame graph" onClick={() => onPick(c.name)}>{c.name}</button></th>
              <td class="num">{formatUnit(c.left, unit)}</td><td class="num">{formatUnit(c.right, unit)}</td><td class={`num ${c.delta > 0 ? "more" : "less"}`}>{points(c.delta)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {matching.length === 0 && <Empty title="No function matches" />}
    </div>
  );
}

function ordering(key: SortKey): (a: FunctionCost, b: FunctionCost) => number {
  if (key === "name") return (a, b) => (a.name < b.name ? -1 : 1);
  return (a, b) => b[key] - a[key] || (a.name < b.name ? -1 : 1);
}
