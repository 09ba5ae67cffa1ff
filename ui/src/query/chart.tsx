// A chart and its legend, as components around Plot.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatCount, formatShort } from "../lib/format.ts";
import { seriesText, splitCommon, type Labels } from "../lib/labels.ts";
import { summarize, type Columns, type Summary } from "../lib/matrix.ts";
import type { Dot } from "../lib/profiles.ts";
import type { Grid } from "../lib/step.ts";
import { LabelList } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { useIsDark } from "../theme.ts";
import { SERIES_COLORS } from "./colors.ts";
import { Plot, type PlotOptions } from "./plot.ts";

const HEIGHT = 340;

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
}

/** What tests read: the element carries its Plot, and so the very arrays that were drawn. */
type PlotHost = HTMLDivElement & { plot?: Plot | undefined };

export function Chart({ columns, grid, stacked, onZoom, onZoomOut, short = formatShort, format, dots, onDot, dotHint }: ChartProps) {
  const host = useRef<PlotHost>(null);
  const plot = useRef<Plot | null>(null);
  const handlers = useRef({ onZoom, onZoomOut, onDot });
  handlers.current = { onZoom, onZoomOut, onDot };
  const dark = useIsDark();
  const { zone } = usePrefs();
  const names = useMemo(() => columns.labels.map(seriesText), [columns]);
  const [hiddenNames, setHiddenNames] = useState<ReadonlySet<string>>(new Set());
  const hidden = useMemo(() => indices(names, hiddenNames), [names, hiddenNames]);
  const [from, to] = [grid.start / 1000, grid.end / 1000];
  // Rebuilt when the lines themselves change; when only their samples do, they are given to the chart that is there.
  const shape = `${names.join("\n")}|${dark}|${zone}|${stacked}|${format?.long(1) ?? ""}`;

  useEffect(() => {
    const p = new Plot(host.current!, columns, {
      zone, stacked, from, to, height: HEIGHT,
      onZoom: (a, b) => handlers.current.onZoom(a, b),
      onZoomOut: () => handlers.current.onZoomOut(),
      format, dots, dotHint,
      onDot: onDot && ((d) => handlers.current.onDot?.(d)),
    });
    host.current!.plot = plot.current = p;
    if (hidden.size > 0) p.setHidden(hidden);
    const watch = new ResizeObserver(() => p.resize(host.current?.clientWidth ?? 0));
    watch.observe(host.current!);
    return () => { watch.disconnect(); p.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.update(columns, from, to, dots); }, [columns, from, to, dots]);
  useEffect(() => { plot.current?.setHidden(hidden); }, [hidden]);

  return (
    <div class="chart">
      <div class="plot" ref={host} role="img" aria-label={`Graph of ${names.length} series, listed below it with their figures`} style={{ height: `${HEIGHT}px` }} />
      <Legend columns={columns} names={names} short={short} hidden={hiddenNames} onHidden={setHiddenNames} onFocus={(i) => plot.current?.focus(i)} />
    </div>
  );
}

function indices(names: readonly string[], hidden: ReadonlySet<string>): ReadonlySet<number> {
  const out = new Set<number>();
  names.forEach((n, i) => { if (hidden.has(n)) out.add(i); });
  // A refresh may leave only hidden series behind; an empty chart would be a riddle.
  return out.size === names.length ? new Set() : out;
}

interface LegendProps {
  short: (v: number) => string;
  columns: Columns;
  names: readonly string[];
  hidden: ReadonlySet<string>;
  onHidden: (hidden: ReadonlySet<string>) => void;
  onFocus: (i: number | null) => void;
}

type SortKey = "name" | keyof Summary;
interface Sort { key: SortKey; down: boolean }

const FIGURES: readonly (readonly [keyof Summary, string])[] = [["min", "Min"], ["mean", "Mean"], ["max", "Max"], ["last", "Last"]];

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

function Legend({ columns, names, hidden, short, onHidden, onFocus }: LegendProps) {
  const [sort, setSort] = useState<Sort | null>(null);
  const { common, varying } = useMemo(() => splitCommon(columns.labels), [columns]);
  const figures = useMemo(() => columns.values.map(summarize), [columns]);
  const order = useMemo(() => ordered(sort, varying, figures), [sort, varying, figures]);
  const pick = (e: MouseEvent, i: number) => {
    const change = e.shiftKey || e.ctrlKey || e.metaKey ? toggle : isolate;
    onHidden(change(names, hidden, names[i]!));
  };
  return (
    <div class="legend" onMouseLeave={() => onFocus(null)}>
      {Object.keys(common).length > 0 && <div class="legend-common"><span>All series</span><LabelList labels={common} /></div>}
      <div class="legend-scroll">
        <table>
          <thead><tr>
            <SortHead text={heading(names.length, columns.omitted)} of="name" sort={sort} onSort={setSort} />
            {FIGURES.map(([key, text]) => <SortHead key={key} text={text} of={key} sort={sort} onSort={setSort} />)}
          </tr></thead>
          <tbody>
            {order.map((i) => (
              <tr key={names[i]} class={hidden.has(names[i]!) ? "off" : ""} onMouseEnter={() => onFocus(i)}>
                <th scope="row">
                  <button type="button" aria-pressed={!hidden.has(names[i]!)} title="Click: only this series. Shift-click: show or hide it."
                    onClick={(e) => pick(e, i)}>
                    <span class="swatch" style={{ background: `var(--s${i % SERIES_COLORS})` }} />
                    <SeriesName labels={varying[i]!} />
                  </button>
                </th>
                {FIGURES.map(([key]) => <td key={key} class={`fig-${key}`}>{figures[i] ? short(figures[i]![key]) : "–"}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

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

function ordered(sort: Sort | null, labels: readonly Labels[], figures: readonly (Summary | null)[]): number[] {
  const all = labels.map((_, i) => i);
  if (!sort) return all;
  const sign = sort.down ? -1 : 1;
  const { key } = sort;
  if (key === "name") {
    const text = labels.map(seriesText);
    return all.sort((a, b) => sign * text[a]!.localeCompare(text[b]!, "en", { numeric: true }));
  }
  return all.sort((a, b) => sign * ((figures[a]?.[key] ?? -Infinity) - (figures[b]?.[key] ?? -Infinity)));
}

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
