// The flame graph with what is around it: search, the way back from a focus, the tooltip, and the table of functions that
// shows the same in text.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { matchedTotal, nameTest, pathTo, shortName, topFunctions, type Flame, type FlameNode, type FunctionCost } from "../lib/flame.ts";
import { formatCount, plural } from "../lib/format.ts";
import { formatShare, formatUnit } from "../lib/units.ts";
import { Empty, Filter, Segments } from "../parts/small.tsx";
import { useIsDark } from "../theme.ts";
import { FlameCanvas, ROW_PX } from "./flamecanvas.ts";

type Tab = "flame" | "table";

export function FlameGraph({ flame, unit }: { flame: Flame; unit: string }) {
  const [tab, setTab] = useState<Tab>("flame");
  const [search, setSearch] = useState("");
  const test = useMemo(() => nameTest(search), [search]);
  const found = useMemo(() => (test ? flame.names.map(test) : null), [flame, test]);
  if (flame.total <= 0) return <Empty title="No stacks here">Nothing was measured in this range, or the selector fits nothing.</Empty>;
  return (
    <div class="flame">
      <div class="panel-bar">
        <Segments<Tab> label="Show as" value={tab} options={[["flame", "Flame graph"], ["table", "Functions"]]} onChange={setTab} />
        <Filter value={search} onInput={setSearch} label="Find functions or /regexp/" />
        {found && <Matched flame={flame} found={found} unit={unit} />}
        <span class="spacer" />
        <p class="stats"><span>total <b>{formatUnit(flame.total, unit)}</b></span><span><b>{formatCount(flame.names.length - 1)}</b> functions</span></p>
      </div>
      {tab === "flame"
        ? <Flames flame={flame} unit={unit} found={found} />
        : <Functions flame={flame} unit={unit} found={found} onPick={(name) => { setSearch(name); setTab("flame"); }} />}
    </div>
  );
}

function Matched({ flame, found, unit }: { flame: Flame; found: readonly boolean[]; unit: string }) {
  const total = useMemo(() => matchedTotal(flame, (n) => found[n] ?? false), [flame, found]);
  const count = found.filter(Boolean).length;
  return <p class="stats matched" aria-live="polite"><span><b>{formatShare(total, flame.total)}</b> in {plural(count, "function")}, {formatUnit(total, unit)}</span></p>;
}

interface FlamesProps { flame: Flame; unit: string; found: readonly boolean[] | null }

/** What tests read: the canvas carries what was drawn on it. */
type FlameHost = HTMLCanvasElement & { flame?: Flame; drawing?: FlameCanvas };

function Flames({ flame, unit, found }: FlamesProps) {
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<FlameHost>(null);
  const drawing = useRef<FlameCanvas | null>(null);
  const [width, setWidth] = useState(0);
  const [focus, setFocus] = useState<FlameNode | null>(null);
  const [tip, setTip] = useState<{ node: FlameNode; x: number; y: number } | null>(null);
  const dark = useIsDark();
  useEffect(() => { setFocus(null); setTip(null); }, [flame]);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(host.current?.clientWidth ?? 0));
    watch.observe(host.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => { drawing.current = new FlameCanvas(canvas.current!); }, [dark]);
  useEffect(() => {
    if (width === 0) return;
    // A focus of another graph is gone with it, one render before the effect above clears it.
    const fits = focus !== null && flame.levels[focus.level]?.includes(focus) ? focus : null;
    drawing.current!.draw({ flame, focus: fits, matches: found && ((n) => found[n] ?? false), hovered: tip?.node ?? null }, width);
    Object.assign(canvas.current!, { flame, drawing: drawing.current });
  }, [flame, focus, found, tip, width, dark]);

  const point = (e: MouseEvent): FlameNode | null => drawing.current!.at(e.offsetX, e.offsetY);
  const move = (e: MouseEvent) => {
    const node = point(e);
    setTip(node ? { node, x: e.offsetX, y: e.offsetY } : null);
  };
  const pick = (node: FlameNode | null) => { if (node) setFocus(node.level === 0 || node === focus ? null : node); };
  return (
    <>
      <Crumbs flame={flame} focus={focus} onFocus={setFocus} />
      <div class="flames" ref={host} onKeyDown={(e) => { if (e.key === "Escape") setFocus(null); }}>
        <canvas ref={canvas} role="img" aria-label="Flame graph; the list of functions holds the same figures"
          style={{ width: "100%", height: `${flame.levels.length * ROW_PX}px`, cursor: tip ? "pointer" : "default" }}
          onMouseMove={move} onMouseLeave={() => setTip(null)} onClick={(e) => pick(point(e))} />
        {tip && <Tip flame={flame} unit={unit} tip={tip} width={width} focus={focus} />}
      </div>
    </>
  );
}

/** The callers of what is focused, each a way back; without a focus, how to get one. */
function Crumbs({ flame, focus, onFocus }: { flame: Flame; focus: FlameNode | null; onFocus: (n: FlameNode | null) => void }) {
  if (!focus) return <p class="hint crumbs">Click a function to look at it alone.</p>;
  const path = pathTo(flame, focus);
  // The way from the root is long; its last steps are what one goes back by.
  const shown = path.length > 5 ? [path[0]!, ...path.slice(-4)] : path;
  return (
    <nav class="crumbs" aria-label="Focused function">
      {shown.map((n, i) => (
        <span key={n.level}>
          {i > 0 && <span class="punct">{i === 1 && shown.length < path.length ? " › … › " : " › "}</span>}
          {n === focus ? <b>{shortName(flame.names[n.name] ?? "")}</b>
            : <button type="button" class="link" onClick={() => onFocus(n.level === 0 ? null : n)}>{n.level === 0 ? "all" : shortName(flame.names[n.name] ?? "")}</button>}
        </span>
      ))}
    </nav>
  );
}

interface TipProps { flame: Flame; unit: string; tip: { node: FlameNode; x: number; y: number }; width: number; focus: FlameNode | null }

function Tip({ flame, unit, tip, width, focus }: TipProps) {
  const { node, x, y } = tip;
  const right = x > width / 2;
  const place = right ? { right: `${width - x + 12}px` } : { left: `${x + 14}px` };
  return (
    <div class="tip flame-tip" role="status" style={{ ...place, top: `${y + 18}px` }}>
      <div class="flame-name">{flame.names[node.name]}</div>
      <dl class="tip-labels">
        <dt>total</dt><dd>{formatUnit(node.total, unit)} · {formatShare(node.total, flame.total)}{focus && node !== focus && ` · ${formatShare(node.total, focus.total)} of the focus`}</dd>
        <dt>self</dt><dd>{formatUnit(node.self, unit)} · {formatShare(node.self, flame.total)}</dd>
      </dl>
    </div>
  );
}

type SortKey = "name" | "self" | "total";
const ROWS_MAX = 300;

function Functions({ flame, unit, found, onPick }: FlamesProps & { onPick: (name: string) => void }) {
  const [sort, setSort] = useState<SortKey>("self");
  const costs = useMemo(() => topFunctions(flame), [flame]);
  const matching = useMemo(() => {
    const names = found && new Set(flame.names.filter((_, i) => found[i]));
    return names ? costs.filter((c) => names.has(c.name)) : costs;
  }, [costs, found]);
  const rows = useMemo(() => [...matching].sort(ordering(sort)).slice(0, ROWS_MAX), [matching, sort]);
  const largest = rows.reduce((most, c) => Math.max(most, c.self), 0);
  const head = (key: SortKey, text: string) => (
    <th scope="col" class={key === "name" ? "" : "num"} aria-sort={sort === key ? (key === "name" ? "ascending" : "descending") : "none"}>
      <button type="button" onClick={() => setSort(key)}>{text}{sort === key && <span class="arrow">{key === "name" ? "↑" : "↓"}</span>}</button>
    </th>
  );
  return (
    <div class="table-scroll">
      <table class="data functions">
        <thead><tr>{head("name", "Function")}{head("self", "Self")}{head("total", "Total")}</tr></thead>
        <tbody>
          {rows.map((c) => (
            <tr key={c.name}>
              <th scope="row"><button type="button" class="function" title="Find it in the flame graph" onClick={() => onPick(c.name)}>{c.name}</button></th>
              <td class="num bar-cell"><span class="bar" style={{ width: largest > 0 ? `${(100 * c.self) / largest}%` : "0" }} /><span>{formatUnit(c.self, unit)} <i>{formatShare(c.self, flame.total)}</i></span></td>
              <td class="num">{formatUnit(c.total, unit)} <i>{formatShare(c.total, flame.total)}</i></td>
            </tr>
          ))}
        </tbody>
      </table>
      {matching.length > rows.length && <p class="note">The first {formatCount(rows.length)} of {formatCount(matching.length)} functions.</p>}
      {rows.length === 0 && <Empty title="No function matches" />}
    </div>
  );
}

function ordering(key: SortKey): (a: FunctionCost, b: FunctionCost) => number {
  if (key === "name") return (a, b) => (a.name < b.name ? -1 : 1);
  return (a, b) => b[key] - a[key] || (a.name < b.name ? -1 : 1);
}
