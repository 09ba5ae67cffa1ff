// A chart and its legend, as components around Plot.
import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatCount, formatShort } from "../lib/format.ts";
import { commonLabels, countingKey, without, type Labels } from "../lib/labels.ts";
import { FIGURES, summary, type Columns, type Summary } from "../lib/matrix.ts";
import type { Dot } from "../lib/profiles.ts";
import type { Grid } from "../lib/step.ts";
import { Filter, LabelList } from "../parts/small.tsx";
import { useVirtual } from "../parts/virtual.ts";
import { MARKS_MAX, seriesMark, type Scale } from "../lib/urlstate.ts";
import { usePrefs } from "../prefs.ts";
import { useIsDark } from "../theme.ts";
import { SERIES_COLORS } from "./colors.ts";
import { AT_ONCE_MAX, LINES_MAX, Plot, type PlotOptions } from "./plot.ts";

const HEIGHT = 340;

/** Leads from a selected range of a graph to the flame graphs of that time. */
export interface Brush { onDiff: (fromMS: number, toMS: number) => void }

/** `hidden` and `only` are marks of lines: at most one of them has any. */
export interface ChartView { hidden: readonly string[]; only: readonly string[]; sort: string; find: string }

export interface ChartProps {
  columns: Columns;
  grid: Grid;
  stacked: boolean;
  onZoom: (fromMS: number, toMS: number) => void;
  onZoomOut: () => void;
  /** Figures of the legend; decimal prefixes without one. */
  short?: (v: number) => string;
  format?: PlotOptions["format"];
  dots?: readonly Dot[];
  onDot?: (d: Dot) => void;
  dotHint?: (d: Dot) => string;
  scale?: Scale;
  /** Marks of hidden lines and the legend's order, as the address has them; without onView they are not kept. */
  hidden?: readonly string[];
  only?: readonly string[];
  sort?: string;
  find?: string;
  onView?: (v: Partial<ChartView>) => void;
  /** What a selected range leads to next to a zoom; null offers nothing. */
  brush?: Brush | null;
}

/** What tests read: the element carries its Plot, and so the very arrays that were drawn. */
type PlotHost = HTMLDivElement & { plot?: Plot | undefined };

export function Chart(props: ChartProps) {
  const { columns, grid, stacked, scale = "auto", short = formatShort, format, dots, brush = null } = props;
  const host = useRef<PlotHost>(null);
  const plot = useRef<Plot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const dark = useIsDark();
  const { zone } = usePrefs();
  const { names } = columns;
  const colors = useColors(names, columns);
  const [ownView, setOwnView] = useState<ChartView>({ hidden: [], only: [], sort: "", find: "" });
  const view = props.onView ? { hidden: props.hidden ?? [], only: props.only ?? [], sort: props.sort ?? "", find: props.find ?? "" } : ownView;
  const setView = props.onView ?? ((v: Partial<ChartView>) => setOwnView((old) => ({ ...old, ...v })));
  const viewKey = `${view.hidden.join(".")}|${view.only.join(".")}`;
  const hiddenNames = useMemo(() => hiddenOf(names, view), [names, viewKey]);
  const hidden = useMemo(() => indices(names, hiddenNames), [names, hiddenNames]);
  const [from, to] = [grid.start / 1000, grid.end / 1000];
  // The chart is built again when the set of lines changes. If only their samples change, the existing chart gets them.
  const lines = useMemo(() => (names.length > LINES_MAX ? String(names.length) : names.join("\n")), [names]);
  const shape = `${lines}|${dark}|${zone}|${stacked}|${scale}|${format?.long(1) ?? ""}`;

  useEffect(() => {
    const p = new Plot(host.current!, columns, {
      zone, stacked, scale, colors, from, to, height: HEIGHT,
      onZoom: (a, b) => latest.current.onZoom(a, b),
      onZoomOut: () => latest.current.onZoomOut(),
      format, dots, dotHint: props.dotHint && ((d) => latest.current.dotHint?.(d) ?? ""),
      onDot: props.onDot && ((d) => latest.current.onDot?.(d)),
    });
    host.current!.plot = plot.current = p;
    if (hidden.size > 0) p.setHidden(hidden);
    const watch = new ResizeObserver(() => p.resize(host.current?.clientWidth ?? 0));
    watch.observe(host.current!);
    return () => { watch.disconnect(); p.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.update(columns, from, to, dots); }, [columns, from, to, dots]);
  useEffect(() => { plot.current?.setHidden(hidden); }, [hidden]);
  const setHidden = (next: ReadonlySet<string>) => setView(marksOf(names, next));
  const ready = useNextTask(columns, names.length <= AT_ONCE_MAX);
  const legend = useRef<VNode | null>(null);
  if (ready) legend.current = <Legend columns={columns} names={names} colors={colors} short={short} hidden={hiddenNames} sort={view.sort} onSort={(sort) => setView({ sort })} find={view.find} onFind={(find) => setView({ find })} onHidden={setHidden} onFocus={(i) => plot.current?.focus(i)} />;
  const help = useMemo(() => describe(columns, names, short), [columns, names]);

  return (
    <div class="chart">
      {format?.title !== undefined && format.title !== "" && <p class="axis-title">{format.title}</p>}
      <div class="plot" ref={host} role="img" tabIndex={0} aria-label={help} style={{ height: `${HEIGHT}px` }}
        onKeyDown={(e) => keyOnPlot(e, plot.current, brush, latest.current)} />
      {brush && <BrushHint brush={brush} plot={plot} />}
      {legend.current}
    </div>
  );
}

/** False until the task after the one in which `value` came, unless it is ready at once: two small tasks instead of a long one. */
function useNextTask(value: unknown, atOnce: boolean): boolean {
  const [seen, setSeen] = useState<unknown>(null);
  const ready = atOnce || seen === value;
  useEffect(() => {
    if (ready) return undefined;
    const timer = setTimeout(() => setSeen(value));
    return () => clearTimeout(timer);
  }, [value, ready]);
  return ready;
}

const NONE: ReadonlySet<string> = new Set();

function hiddenOf(names: readonly string[], { hidden, only }: ChartView): ReadonlySet<string> {
  if (hidden.length === 0 && only.length === 0) return NONE;
  const marks = new Set(only.length > 0 ? only : hidden);
  const off = names.filter((n) => marks.has(seriesMark(n)) !== only.length > 0);
  // Marks of another query would hide everything.
  return off.length === names.length ? NONE : new Set(off);
}

/** Whichever list is the shorter one: an address has no room for ten thousand. */
function marksOf(names: readonly string[], hidden: ReadonlySet<string>): Pick<ChartView, "hidden" | "only"> {
  const shown = names.length - hidden.size;
  if (hidden.size === 0 || (hidden.size > shown && shown > MARKS_MAX)) return { hidden: [], only: [] };
  if (hidden.size > shown) return { hidden: [], only: names.filter((n) => !hidden.has(n)).map(seriesMark) };
  return { hidden: [...hidden].map(seriesMark), only: [] };
}

/** Lines keep their colours while a refresh brings others: a name has the first colour that was free when it came. */
function useColors(names: readonly string[], columns: Columns): readonly number[] {
  const known = useRef(new Map<string, number>());
  return useMemo(() => {
    // In a picture of that many lines colours have no meaning.
    if (names.length > LINES_MAX) return names.map((_, i) => i);
    const had = known.current;
    const next = new Map<string, number>();
    for (const n of names) { const c = had.get(n); if (c !== undefined) next.set(n, c); }
    const taken = new Set(next.values());
    let free = 0;
    names.forEach((n, i) => {
      const of = columns.earlierOf?.[i] ?? -1;
      if (of >= 0) { next.set(n, next.get(names[of]!)!); return; }
      if (next.has(n)) return;
      while (taken.has(free)) free++;
      next.set(n, free);
      taken.add(free);
    });
    known.current = next;
    return names.map((n) => next.get(n)!);
  }, [names, columns]);
}

/** The graph in words, for anyone who does not see it. */
function describe(columns: Columns, names: readonly string[], short: (v: number) => string): string {
  const first = columns.values.length > 0 ? summary(columns, 0) : null;
  const figures = first && names.length === 1 ? `: last ${short(first.last)}, from ${short(first.min)} to ${short(first.max)}` : ", listed below with their figures";
  return `Graph of ${names.length} series${figures}. Arrow keys move the cross-hair, plus and minus zoom.`;
}

const STEPS: Readonly<Record<string, number>> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

function keyOnPlot(e: KeyboardEvent, plot: Plot | null, brush: Brush | null, { onZoom, onZoomOut, grid }: ChartProps): void {
  if (!plot || e.ctrlKey || e.metaKey || e.altKey) return;
  const step = STEPS[e.key];
  if (step !== undefined) plot.moveCursor(step, e.shiftKey);
  else if (e.key === "-") onZoomOut();
  else if (e.key === "+" || e.key === "Enter") {
    const s = plot.selection() ?? { from: grid.start + (grid.end - grid.start) / 4, to: grid.end - (grid.end - grid.start) / 4 };
    plot.clearSelection();
    onZoom(s.from, s.to);
  } else if (e.key === "d" && brush) {
    const s = plot.selection();
    if (s) brush.onDiff(s.from, s.to);
  } else if (e.key === "Escape") plot.clearSelection();
  else return;
  e.preventDefault();
}

function BrushHint({ brush, plot }: { brush: Brush; plot: { current: Plot | null } }) {
  return (
    <p class="hint brush-hint">
      Drag to zoom. Drag with <kbd>Shift</kbd> to select a range, then <kbd>d</kbd> or
      <button type="button" class="link" onClick={() => { const s = plot.current?.selection() ?? plot.current?.range(); if (s) brush.onDiff(s.from, s.to); }}>why did it change?</button>
    </p>
  );
}

function indices(names: readonly string[], hidden: ReadonlySet<string>): ReadonlySet<number> {
  const out = new Set<number>();
  if (hidden.size === 0) return out;
  names.forEach((n, i) => { if (hidden.has(n)) out.add(i); });
  // After a refresh all remaining series may be hidden ones. An empty chart would confuse users, so all are shown.
  return out.size === names.length ? new Set() : out;
}

interface LegendProps {
  short: (v: number) => string;
  columns: Columns;
  names: readonly string[];
  colors: readonly number[];
  hidden: ReadonlySet<string>;
  sort: string;
  onSort: (sort: string) => void;
  find: string;
  onFind: (find: string) => void;
  onHidden: (hidden: ReadonlySet<string>) => void;
  onFocus: (i: number | null) => void;
}

type SortKey = "name" | keyof Summary;
interface Sort { key: SortKey; down: boolean }

const FIGURE_HEADS: readonly (readonly [keyof Summary, string])[] = [["min", "Min"], ["mean", "Mean"], ["max", "Max"], ["last", "Last"]];

/** Hides all but one; hiding all but the one that is alone shows all again. */
function isolate(names: readonly string[], hidden: ReadonlySet<string>, name: string): ReadonlySet<string> {
  const alone = !hidden.has(name) && hidden.size === names.length - 1;
  return alone ? new Set() : new Set(names.filter((n) => n !== name));
}

function toggle(names: readonly string[], hidden: ReadonlySet<string>, name: string): ReadonlySet<string> {
  const next = new Set(hidden);
  if (!next.delete(name)) next.add(name);
  return next.size === names.length ? new Set() : next;
}

function parseSort(text: string): Sort | null {
  const key = text.slice(0, -1);
  return key === "name" || FIGURE_HEADS.some(([f]) => f === key) ? { key: key as SortKey, down: text.endsWith("-") } : null;
}

const ROW_PX = 26;

function Legend({ columns, names, colors, hidden, short, sort: sortText, onSort, find, onFind, onHidden, onFocus }: LegendProps) {
  const [typed, setFilter] = useState<string | null>(null);
  const filter = typed ?? find;
  const sort = parseSort(sortText);
  const setSort = (s: Sort | null) => onSort(s ? `${s.key}${s.down ? "-" : "+"}` : "");
  const common = useMemo(() => commonLabels(columns.labels), [columns]);
  const all = useMemo(() => ordered(sort, columns), [sortText, columns]);
  const order = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter((w) => w !== "");
    return words.length === 0 ? all : all.filter((i) => { const n = names[i]!.toLowerCase(); return words.every((w) => n.includes(w)); });
  }, [all, filter]);
  const rows = useVirtual(order.length, ROW_PX);
  const pick = (e: MouseEvent, i: number) => {
    const change = e.shiftKey || e.ctrlKey || e.metaKey ? toggle : isolate;
    onHidden(change(names, hidden, names[i]!));
  };
  return (
    <div class="legend" onMouseLeave={() => onFocus(null)}>
      {Object.keys(common).length > 0 && <div class="legend-common"><span>All series</span><LabelList labels={common} /></div>}
      {names.length > FILTER_FROM && <Filter value={filter} onInput={setFilter} onDone={(v) => { setFilter(null); onFind(v); }} label="Filter the series" />}
      <div class="legend-scroll" ref={rows.ref} onScroll={rows.onScroll} tabIndex={0} role="region" aria-label="Series of the graph">
        <table>
          <thead><tr>
            <SortHead text={heading(names.length, columns.omitted)} of="name" sort={sort} onSort={setSort} />
            {FIGURE_HEADS.map(([key, text]) => <SortHead key={key} text={text} of={key} sort={sort} onSort={setSort} />)}
          </tr></thead>
          <tbody>
            {rows.before > 0 && <tr aria-hidden="true" style={{ height: `${rows.before}px` }} />}
            {order.slice(rows.from, rows.to).map((i, k) => {
              const figures = summary(columns, i);
              return (
                <tr key={rows.whole ? names[i] : k} class={hidden.has(names[i]!) ? "off" : ""} onMouseEnter={() => onFocus(i)}>
                  <th scope="row">
                    <button type="button" aria-pressed={!hidden.has(names[i]!)} title="Click: only this series. Shift-click: show or hide it."
                      onClick={(e) => pick(e, i)}>
                      <span class="swatch" style={{ background: `var(--s${colors[i]! % SERIES_COLORS})` }} />
                      <SeriesName labels={without(columns.labels[i]!, common)} />
                    </button>
                  </th>
                  {FIGURE_HEADS.map(([key]) => <td key={key} class={`fig-${key}`}>{figures ? short(figures[key]) : "–"}</td>)}
                </tr>
              );
            })}
            {rows.after > 0 && <tr aria-hidden="true" style={{ height: `${rows.after}px` }} />}
          </tbody>
        </table>
      </div>
    </div>
  );
}

/** A box to filter with is worth its room from here. */
const FILTER_FROM = 20;

function heading(drawn: number, omitted: number): string {
  if (omitted > 0) return `${formatCount(drawn)} of ${formatCount(drawn + omitted)} series`;
  return drawn === 1 ? "Series" : `${formatCount(drawn)} series`;
}

function SortHead({ text, of, sort, onSort }: { text: string; of: SortKey; sort: Sort | null; onSort: (s: Sort | null) => void }) {
  const mine = sort?.key === of ? sort : null;
  // Figures fall first and names rise first; the third click restores the server's order.
  const firstDown = of !== "name";
  const next = !mine ? { key: of, down: firstDown } : mine.down === firstDown ? { key: of, down: !firstDown } : null;
  return (
    <th scope="col" class={of === "name" ? "" : `fig-${of}`} aria-sort={mine ? (mine.down ? "descending" : "ascending") : "none"}>
      <button type="button" onClick={() => onSort(next)}>{text}{mine && <span class="arrow">{mine.down ? "↓" : "↑"}</span>}</button>
    </th>
  );
}

function ordered(sort: Sort | null, columns: Columns): number[] {
  const all = columns.names.map((_, i) => i);
  if (!sort) return all;
  const sign = sort.down ? -1 : 1;
  if (sort.key === "name") {
    const keys = columns.names.map(countingKey);
    return all.sort((a, b) => (keys[a] === keys[b] ? a - b : keys[a]! < keys[b]! ? -sign : sign));
  }
  const at = PLACES[sort.key];
  const keys = all.map((i) => { const v = columns.figures[i * FIGURES + at]!; return Number.isNaN(v) ? -Infinity : v; });
  return all.sort((a, b) => (keys[a] === keys[b] ? a - b : keys[a]! < keys[b]! ? -sign : sign));
}

/** Where a figure is among those of a series. */
const PLACES = { min: 0, max: 1, mean: 2, last: 3 };

/** A label set in one line, values standing out against names. */
export function SeriesName({ labels }: { labels: Labels }) {
  const name = labels["__name__"];
  const rest = Object.entries(labels).filter(([k]) => k !== "__name__");
  return (
    <span class="series-name">
      {name && <span class="metric-name">{name}</span>}
      {rest.length > 0 && <>
        <span class="punct">{"{"}</span>
        {rest.map(([k, v], i) => (
          <span key={k}><span class="punct">{i > 0 ? ", " : ""}{k}=</span>"{v}"</span>
        ))}
        <span class="punct">{"}"}</span>
      </>}
      {!name && rest.length === 0 && <span class="punct">{"{}"}</span>}
    </span>
  );
}
