// The flame graph with its controls: search, path of a focused function, tooltip and menu, sandwich, and the table of
// functions. The view of the flame graph is in the address.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { exactly, focusMark, focusOf, inPackage, matchedTotal, nameTest, otherShare, pathTo, rootOf, shortName, topFunctions, topPackages, type Flame, type FlameNode } from "../lib/flame.ts";
import { change, type DiffNode } from "../lib/flamediff.ts";
import { formatCount, plural } from "../lib/format.ts";
import { NODES, type ProfileState } from "../lib/profilestate.ts";
import { collapseRecursion, sandwich, toFolded } from "../lib/sandwich.ts";
import { formatShare, formatUnit } from "../lib/units.ts";
import { saveBlob } from "../parts/save.ts";
import { copyText, Empty, Filter, Segments } from "../parts/small.tsx";
import { useIsDark } from "../theme.ts";
import { FlameCanvas, isDiff, LEVELS_MAX, packageColor, ROW_PX, rowsOf } from "./flamecanvas.ts";
import { Functions, type ExactOf } from "./functions.tsx";

export type FlameState = Pick<ProfileState, "view" | "find" | "sandwich" | "upward" | "collapse" | "focus" | "nodes" | "ends" | "bySelf" | "order" | "service">;

interface Props {
  flame: Flame;
  /** What shares are of: more than the graph's own total where only a part of all stacks was requested. */
  whole: number;
  /** Whether the graph has the stacks of its focus only. */
  part: boolean;
  exact: ExactOf;
  unit: string;
  state: FlameState;
  onChange: (c: Partial<FlameState>) => void;
  fileName: string;
  /** Leads to the metrics of the service; null without one. */
  onMetrics: (() => void) | null;
}

export function FlameGraph({ flame: whole, whole: total, part, exact, unit, state, onChange, fileName, onMetrics }: Props) {
  const flame = useMemo(() => (state.collapse && !isDiff(whole) ? collapseRecursion(whole) : whole), [whole, state.collapse]);
  const test = useMemo(() => nameTest(state.find), [state.find]);
  const found = useMemo(() => (test ? flame.names.map(test) : null), [flame, test]);
  const both = useMemo(() => (state.sandwich !== "" && !isDiff(flame) ? sandwich(flame, state.sandwich) : null), [flame, state.sandwich]);
  const focus = useMemo(() => { const n = focusOf(flame, state.focus); return n && n.level > 0 ? n : null; }, [flame, state.focus]);
  if (flame.total <= 0) return <Empty title="No stacks here">No profile in this range matches the selector.</Empty>;
  const pick = (name: string) => onChange({ find: exactly(name), ...(state.view === "table" ? { view: "flame" as const } : {}) });
  const actions: Actions = { find: pick, sandwich: (name) => onChange({ sandwich: name }), metrics: onMetrics && { of: state.service, open: onMetrics } };
  const look = { upward: state.upward, ends: state.ends, bySelf: state.bySelf };
  return (
    <div class="flame">
      <div class="panel-bar">
        <Segments<FlameState["view"]> label="Show as" value={state.view} options={[["flame", "Flame graph"], ["table", "Functions"], ["both", "Both"]]} onChange={(view) => onChange({ view })} />
        <Filter value={state.find} onInput={(find) => onChange({ find })} label="Find functions or /regexp/" />
        {found && <Matched flame={flame} found={found} unit={unit} />}
        <span class="spacer" />
        <Look state={state} diff={isDiff(flame)} onChange={onChange} />
        {isDiff(flame) ? <DiffLegend /> : <p class="stats"><span>total <b>{formatUnit(total, unit)}</b></span><span><b>{formatCount(exact?.[0].count ?? flame.names.length - 1)}</b> functions</span></p>}
      </div>
      <CutNote flame={flame} focus={focus} part={part} exact={exact} state={state} onChange={onChange} />
      {state.sandwich !== "" && !isDiff(flame) && (
        <p class="note sandwich-note">Callers and callees of <code>{state.sandwich}</code>{!both && ", which is not in this graph"}.<button type="button" class="link" onClick={() => onChange({ sandwich: "" })}>Show the whole graph</button></p>
      )}
      {!isDiff(flame) && (
        <div class="panel-bar">
          {!state.bySelf && state.view !== "table" && <Packages flame={flame} onPick={(find) => onChange({ find })} />}
          <span class="spacer" /><Downloads flame={whole} name={fileName} />
        </div>
      )}
      <div class={`flame-views ${state.view}`}>
        {state.view !== "flame" && <Functions flame={flame} whole={total} exact={exact} unit={unit} test={test} order={state.order || "self"} onOrder={(by) => onChange({ order: by === "self" ? "" : by })} onPick={pick} onSandwich={actions.sandwich} />}
        {state.view !== "table" && (both ? (
          <div class="sandwich">
            <h3>Callers</h3><OwnFocus flame={both.callers} whole={total} unit={unit} found={found} look={{ ...look, upward: true }} actions={actions} />
            <h3>Callees</h3><OwnFocus flame={both.callees} whole={total} unit={unit} found={found} look={{ ...look, upward: false }} actions={actions} />
          </div>
        ) : <div><Flames flame={flame} whole={total} unit={unit} found={found} look={look} actions={actions} focus={focus} onFocus={(n) => onChange({ focus: n ? focusMark(flame, n) : "" })} /></div>)}
      </div>
    </div>
  );
}

/** How boxes are drawn. */
function Look({ state, diff, onChange }: { state: FlameState; diff: boolean; onChange: Props["onChange"] }) {
  return (
    <>
      <label class="check"><input type="checkbox" checked={state.upward} onChange={(e) => onChange({ upward: e.currentTarget.checked })} />Roots at the bottom</label>
      <label class="check" title="A name that does not fit shows its end instead of its start"><input type="checkbox" checked={state.ends} onChange={(e) => onChange({ ends: e.currentTarget.checked })} />Trim names on the left</label>
      {!diff && <label class="check" title="A function that calls itself is one box"><input type="checkbox" checked={state.collapse} onChange={(e) => onChange({ collapse: e.currentTarget.checked })} />Collapse recursion</label>}
      {!diff && <label class="check" title="Colours functions by their own share instead of by package"><input type="checkbox" checked={state.bySelf} onChange={(e) => onChange({ bySelf: e.currentTarget.checked })} />Colour by self</label>}
    </>
  );
}

interface CutNoteProps { flame: Flame; focus: FlameNode | null; part: boolean; exact: ExactOf; state: FlameState; onChange: Props["onChange"] }

/** What the server has joined to "other", and the way to more. */
function CutNote({ flame, focus, part, exact, state, onChange }: CutNoteProps) {
  const other = useMemo(() => otherShare(flame, focus ?? undefined), [flame, focus]);
  if (other <= 0) return part ? <p class="note" data-part>The focused function with all of its callees.</p> : null;
  const more = NODES.find((n) => n > (state.nodes || NODES[0]));
  return (
    <p class="note" data-other={other}>
      {formatShare(other, 1)} {focus ? "of the focus is" : "is"} in <code>other</code>: functions too small for this graph.{exact && " The table has the whole of every function."}
      {more !== undefined && <button type="button" class="link" onClick={() => onChange({ nodes: more })}>Draw up to {formatCount(more)} boxes</button>}
    </p>
  );
}

const PACKAGES_MAX = 6;

/** What the colours stand for; a click finds a package. */
function Packages({ flame, onPick }: { flame: Flame; onPick: (find: string) => void }) {
  const packages = useMemo(() => topPackages(topFunctions(flame), PACKAGES_MAX), [flame]);
  const dark = useIsDark();
  const colors = useMemo(() => packages.map((p) => packageColor(p.name)), [packages, dark]);
  if (packages.length < 2) return null;
  return (
    <ul class="packages" aria-label="The largest packages">
      {packages.map((p, i) => (
        <li key={p.name}><button type="button" class="chip" title={`Find ${p.name}`} onClick={() => onPick(inPackage(p.name))}><span class="swatch" style={{ background: colors[i]! }} />{shortName(p.name)} <i>{formatShare(p.self, flame.total)}</i></button></li>
      ))}
    </ul>
  );
}

const DiffLegend = () => <p class="stats diff-legend"><span class="less">less</span><span class="same">same share</span><span class="more">more</span></p>;

function Downloads({ flame, name }: { flame: Flame; name: string }) {
  const picture = (e: MouseEvent) => (e.currentTarget as HTMLElement).closest(".flame")?.querySelector("canvas")?.toBlob((b) => { if (b) saveBlob(b, `${name}.png`); });
  return (
    <span class="downloads">
      <button type="button" class="link" onClick={() => saveBlob(new Blob([JSON.stringify(flame)], { type: "application/json" }), `${name}.json`)}>JSON</button>
      <button type="button" class="link" title="One line per stack, for flamegraph.pl and speedscope" onClick={() => saveBlob(new Blob([toFolded(flame)], { type: "text/plain" }), `${name}.folded.txt`)}>Folded</button>
      <button type="button" class="link" onClick={picture}>PNG</button>
    </span>
  );
}

function Matched({ flame, found, unit }: { flame: Flame; found: readonly boolean[]; unit: string }) {
  const total = useMemo(() => matchedTotal(flame, (n) => found[n] ?? false), [flame, found]);
  const count = found.filter(Boolean).length;
  return <p class="stats matched" aria-live="polite"><span><b>{formatShare(total, flame.total)}</b> in {plural(count, "function")}{!isDiff(flame) && `, ${formatUnit(total, unit)}`}</span></p>;
}

interface Actions { find: (name: string) => void; sandwich: (name: string) => void; metrics: { of: string; open: () => void } | null }
interface PlainProps { flame: Flame; /** What shares are of. */ whole: number; unit: string; found: readonly boolean[] | null; look: { upward: boolean; ends: boolean; bySelf: boolean }; actions: Actions }
interface FlamesProps extends PlainProps { focus: FlameNode | null; onFocus: (n: FlameNode | null) => void }

/** A graph that was made of another one, such as callers: its focus is not in the address. */
function OwnFocus(props: PlainProps) {
  const [focus, setFocus] = useState<FlameNode | null>(null);
  // Another graph does not have the focused node.
  const fits = focus !== null && props.flame.levels[focus.level]?.includes(focus) ? focus : null;
  return <Flames {...props} focus={fits} onFocus={setFocus} />;
}

/** What tests read: the canvas carries what was drawn on it. */
type FlameHost = HTMLCanvasElement & { flame?: Flame; drawing?: FlameCanvas };

interface Pointed { node: FlameNode; x: number; y: number }

function Flames({ flame, whole, unit, found, look, actions, focus, onFocus }: FlamesProps) {
  const { upward, ends, bySelf } = look;
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<FlameHost>(null);
  const tipHost = useRef<HTMLDivElement>(null);
  const drawing = useRef<FlameCanvas | null>(null);
  const [width, setWidth] = useState(0);
  const [tip, setTip] = useState<Pointed | null>(null);
  const [menu, setMenu] = useState<Pointed | null>(null);
  const dark = useIsDark();
  useEffect(() => { setTip(null); setMenu(null); }, [flame]);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(host.current?.clientWidth ?? 0));
    watch.observe(host.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => { drawing.current = new FlameCanvas(canvas.current!); }, [dark]);
  useEffect(() => {
    if (width === 0) return;
    drawing.current!.draw({ flame, focus, matches: found && ((n) => found[n] ?? false), upward, alignRight: ends, bySelf }, width);
    Object.assign(canvas.current!, { flame, drawing: drawing.current });
  }, [flame, focus, found, upward, ends, bySelf, width, dark]);

  const point = (e: MouseEvent): FlameNode | null => drawing.current!.at(e.offsetX, e.offsetY);
  const move = (e: MouseEvent) => {
    const node = point(e);
    // Within a box the tooltip follows without a new rendering.
    if (node && node === tip?.node && tipHost.current) { tipPlace(tipHost.current, e.offsetX, e.offsetY, width); return; }
    if (node !== (tip?.node ?? null)) setTip(node ? { node, x: e.offsetX, y: e.offsetY } : null);
  };
  const pick = (node: FlameNode | null) => { setMenu(null); if (node) onFocus(node.level === 0 || node === focus ? null : node); };
  const openMenu = (e: MouseEvent) => {
    const node = point(e);
    if (!node || node.level === 0) return;
    e.preventDefault();
    setTip(null);
    setMenu({ node, x: e.offsetX, y: e.offsetY });
  };
  const show = (node: FlameNode | null) => { const b = node && drawing.current!.boxOf(node); if (node && b) setTip({ node, x: b.x + Math.min(b.w / 2, 200), y: b.y }); };
  const key = (e: KeyboardEvent) => {
    const at = tip?.node ?? focus ?? rootOf(flame);
    if (e.key === "Escape") { onFocus(null); setTip(null); setMenu(null); return; }
    if (!at) return;
    const deeper = upward ? "ArrowUp" : "ArrowDown";
    const higher = upward ? "ArrowDown" : "ArrowUp";
    if (e.key === deeper) show((flame.levels[at.level + 1] ?? []).filter((n) => n.start >= at.start && n.start < at.start + at.total).sort((a, b) => b.total - a.total)[0] ?? null);
    else if (e.key === higher) show(pathTo(flame, at)[at.level - 1] ?? null);
    else if (e.key === "ArrowLeft" || e.key === "ArrowRight") { const row = flame.levels[at.level]!; show(row[row.indexOf(at) + (e.key === "ArrowLeft" ? -1 : 1)] ?? null); }
    else if (e.key === "Enter") pick(at);
    else if (e.key === "s" && at.level > 0) actions.sandwich(flame.names[at.name] ?? "");
    else if (e.key === "ContextMenu" || e.key === "m") { if (tip) setMenu(tip); }
    else return;
    e.preventDefault();
  };
  const box = tip && drawing.current?.boxOf(tip.node);
  const deep = flame.levels.length - LEVELS_MAX;
  return (
    <>
      <Crumbs flame={flame} focus={focus} onFocus={onFocus} />
      {deep > 0 && <p class="note">{formatCount(deep)} deeper levels are not drawn; collapsing recursion may bring them up.</p>}
      <div class="flames" ref={host} onKeyDown={key}>
        <canvas ref={canvas} role="img" tabIndex={0} aria-label="Flame graph; the list of functions holds the same figures. Arrow keys move, Enter focuses, s shows callers and callees."
          style={{ width: "100%", height: `${rowsOf(flame) * ROW_PX}px`, cursor: tip ? "pointer" : "default" }}
          onMouseMove={move} onMouseLeave={() => setTip(null)} onClick={(e) => pick(point(e))} onContextMenu={openMenu} />
        {box && <div class="flame-hover" style={{ left: `${box.x}px`, top: `${box.y}px`, width: `${box.w}px`, height: `${ROW_PX - 1}px` }} />}
        {tip && !menu && <Tip flame={flame} whole={whole} unit={unit} tip={tip} width={width} focus={focus} host={tipHost} />}
        {menu && <Menu name={flame.names[menu.node.name] ?? ""} at={menu} width={width} actions={actions} onFocus={() => pick(menu.node)} onClose={() => setMenu(null)} />}
      </div>
    </>
  );
}

function Menu({ name, at, width, actions, onFocus, onClose }: { name: string; at: Pointed; width: number; actions: Actions; onFocus: () => void; onClose: () => void }) {
  const first = useRef<HTMLButtonElement>(null);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    first.current?.focus();
    const outside = (e: Event) => { if (!root.current?.contains(e.target as Node)) onClose(); };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, []);
  const then = (act: () => void) => () => { onClose(); act(); };
  return (
    <div class="popover-body flame-menu" ref={root} role="group" aria-label={`Actions for ${name}`} style={at.x > width - 260 ? { right: "0", top: `${at.y + 6}px` } : { left: `${at.x}px`, top: `${at.y + 6}px` }}>
      <div class="menu">
        <button type="button" ref={first} onClick={then(onFocus)}>Focus</button>
        <button type="button" onClick={then(() => actions.sandwich(name))}>Callers and callees</button>
        <button type="button" onClick={then(() => actions.find(name))}>Highlight all calls</button>
        <button type="button" onClick={then(() => void copyText(name))}>Copy name</button>
        {actions.metrics && <button type="button" onClick={then(actions.metrics.open)}>Metrics of {actions.metrics.of}</button>}
      </div>
    </div>
  );
}

/** The callers of what is focused, each a way back; without a focus, how to get one. */
function Crumbs({ flame, focus, onFocus }: { flame: Flame; focus: FlameNode | null; onFocus: (n: FlameNode | null) => void }) {
  if (!focus) return <p class="hint crumbs">Click a function to look at it alone; right-click for more.</p>;
  const path = pathTo(flame, focus);
  // The path may be long: only the root and the last functions are shown, to which users go back most often.
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

interface TipProps { flame: Flame; whole: number; unit: string; tip: Pointed; width: number; focus: FlameNode | null; host: { current: HTMLDivElement | null } }

/** Next to the pointer, on the side with more room. */
function tipPlace(tip: HTMLElement, x: number, y: number, width: number): void {
  const right = x > width / 2;
  tip.style.transform = right ? `translate(calc(${x - 12}px - 100%), ${y + 18}px)` : `translate(${x + 14}px, ${y + 18}px)`;
}

function Tip({ flame, whole, unit, tip, width, focus, host }: TipProps) {
  const { node, x, y } = tip;
  useLayoutEffect(() => { tipPlace(host.current!, x, y, width); }, [x, y, width]);
  return (
    <div class="tip flame-tip" role="status" ref={host}>
      <div class="flame-name">{flame.names[node.name]}</div>
      <dl class="tip-labels">
        {isDiff(flame) ? <DiffFigures flame={flame} node={node as DiffNode} unit={unit} /> : <>
          <dt>total</dt><dd>{formatUnit(node.total, unit)} · {formatShare(node.total, whole)}{focus && node !== focus && ` · ${formatShare(node.total, focus.total)} of the focus`}</dd>
          <dt>self</dt><dd>{formatUnit(node.self, unit)} · {formatShare(node.self, whole)}</dd>
        </>}
      </dl>
    </div>
  );
}

function DiffFigures({ flame, node, unit }: { flame: Flame & { left: number; right: number }; node: DiffNode; unit: string }) {
  const c = change(node.left, node.right, flame);
  const [a, b] = [flame.left > 0 ? node.left / flame.left : 0, flame.right > 0 ? node.right / flame.right : 0];
  const words = c === 1 ? "new" : c === -1 ? "gone" : a > 0 ? `${b >= a ? "+" : "−"}${Math.abs((100 * (b - a)) / a).toFixed(0)} %` : "";
  return (
    <>
      <dt>before</dt><dd>{formatUnit(node.left, unit)} · {formatShare(a, 1)}</dd>
      <dt>then</dt><dd>{formatUnit(node.right, unit)} · {formatShare(b, 1)}</dd>
      <dt>share</dt><dd>{words}</dd>
    </>
  );
}
