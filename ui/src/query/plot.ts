// One uPlot chart with the tooltip of its crosshair. It draws columns of values. Selection, hidden series
// and times are arguments and callbacks, so that the component that contains the chart holds all state.
import uPlot from "uplot";
import { formatLong, formatShort, formatTicks } from "../lib/format.ts";
import type { Labels } from "../lib/labels.ts";
import { FIGURES, loneSamples, stackColumns, withNulls, type Columns } from "../lib/matrix.ts";
import type { Dot } from "../lib/profiles.ts";
import type { Scale } from "../lib/urlstate.ts";
import { formatMoment, formatTime, type Zone } from "../lib/time.ts";
import { fadeColor, palette, type Palette } from "./colors.ts";
import type { Crowd } from "./crowd.ts";

export interface PlotOptions {
  zone: Zone;
  stacked: boolean;
  scale: Scale;
  /** Of each line, the number of its colour. */
  colors: readonly number[];
  /** Seconds. The axis shows the requested range even where no data is. */
  from: number;
  to: number;
  height: number;
  onZoom: (fromMS: number, toMS: number) => void;
  onZoomOut: () => void;
  /** What the numbers are; decimal prefixes without one. */
  format?: { long: (v: number) => string; ticks: (ticks: readonly number[]) => string[]; title?: string } | undefined;
  /** Exemplars, drawn as diamonds at their own times and values. */
  dots?: readonly Dot[] | undefined;
  onDot?: ((d: Dot) => void) | undefined;
  /** The tooltip's last line over a dot. */
  dotHint?: ((d: Dot) => string) | undefined;
}

const DOT_RADIUS = 4;
const DOT_REACH = 9;
const SYNC_KEY = "ferula";
const THIN_FROM = 40;
/** Milliseconds from one tooltip to the next among many lines. */
const FOLLOW_MS = 100;
/** More lines than this are one picture: no line can be followed among them, and drawing each would stop the page. */
export const LINES_MAX = 500;
/** Up to here uPlot draws the lines, all at once; more are drawn in slices. A stack is always uPlot's. */
export const AT_ONCE_MAX = 60;

export class Plot {
  readonly chart: uPlot;
  private readonly tip: HTMLElement;
  private readonly dot: HTMLElement;
  private readonly colors: Palette;
  private hidden: ReadonlySet<number> = new Set();
  private host: HTMLElement;
  private columns: Columns;
  private options: PlotOptions;
  /** The dot under the pointer. */
  private pointed: Dot | null = null;
  /** Names of the labels in the tooltip, and the elements of their values. */
  private tipShape: string | null = null;
  private tipTexts: Element[] = [];
  /** A tooltip that is still to follow, and when the last one was drawn. */
  private later = 0;
  private hoveredMS = 0;
  private shift = false;
  private gone = false;
  /** The cross-hair of the keyboard, and where a selection by it began. */
  private at = -1;
  private anchor = -1;
  /** Draws in place of uPlot, which then has the axes only. Null until its code is there; absent where lines are few. */
  crowd: Crowd | null | undefined;

  constructor(host: HTMLElement, columns: Columns, options: PlotOptions) {
    this.host = host;
    this.columns = columns;
    this.options = options;
    this.colors = palette();
    this.tip = element(host, "tip");
    this.dot = element(host, "dot");
    if (columns.values.length > (options.stacked ? LINES_MAX : AT_ONCE_MAX)) this.crowd = null;
    this.chart = new uPlot(this.uplotOptions(), this.data(), host);
    if (this.crowd === null) void this.loadCrowd();
    this.chart.over.addEventListener("mousedown", (e) => { this.shift = e.shiftKey; }, true);
    this.chart.over.addEventListener("click", () => { if (this.pointed) this.options.onDot?.(this.pointed); });
  }

  private async loadCrowd(): Promise<void> {
    const { Crowd } = await import("./crowd.ts");
    if (this.gone) return;
    this.crowd = new Crowd(this.chart, this.colors, () => ({ columns: this.columns, hidden: this.hidden, log: this.isLog(), linesMax: LINES_MAX, color: (i) => this.lineColor(i), dashed: (i) => this.isEarlier(i) }));
  }

  private isLog(): boolean {
    return this.options.scale === "log" && !this.options.stacked;
  }

  destroy(): void {
    clearTimeout(this.later);
    this.gone = true;
    this.crowd?.destroy();
    this.chart.destroy();
    this.tip.remove();
    this.dot.remove();
  }

  resize(width: number): void {
    if (width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: this.options.height });
  }

  /** New samples for the same series: nothing is rebuilt, and a tooltip under the mouse stays. */
  update(columns: Columns, from: number, to: number, dots?: readonly Dot[]): void {
    this.columns = columns;
    this.options = { ...this.options, from, to, dots };
    this.crowd?.reset();
    this.chart.setData(this.data());
  }

  setHidden(hidden: ReadonlySet<number>): void {
    this.hidden = hidden;
    if (this.crowd !== undefined) {
      this.crowd?.reset();
      this.chart.setData(this.data());
      return;
    }
    this.chart.batch(() => {
      if (this.options.stacked) this.chart.setData(this.data());
      this.columns.values.forEach((_, i) => {
        const show = !hidden.has(i);
        if (this.chart.series[this.slot(i)]!.show !== show) this.chart.setSeries(this.slot(i), { show });
      });
    });
  }

  /** Moves the cross-hair by steps of the grid; with `select` the range since the last move without it is selected. */
  moveCursor(steps: number, select: boolean): void {
    const { times } = this.columns;
    const last = times.length - 1;
    if (this.at < 0) this.at = steps < 0 ? last + 1 : -1;
    const next = Math.max(0, Math.min(last, this.at + steps));
    if (!select) this.anchor = next;
    else if (this.anchor < 0) this.anchor = Math.max(0, Math.min(last, this.at));
    this.at = next;
    const x = this.chart.valToPos(times[next]!, "x");
    if (select) {
      const from = this.chart.valToPos(times[this.anchor]!, "x");
      this.chart.setSelect({ left: Math.min(from, x), top: 0, width: Math.abs(x - from), height: this.chart.over.clientHeight }, false);
    } else this.clearSelection();
    const i = this.columns.values.findIndex((c, k) => !Number.isNaN(c[next]!) && !this.hidden.has(k));
    const y = i < 0 ? 0 : this.chart.valToPos(this.drawnAt(i, next) ?? 0, "y");
    this.chart.setCursor({ left: x, top: y }, false);
    this.hoverAt(next, x, y);
  }

  /** The selected range in ms, or null. */
  selection(): { from: number; to: number } | null {
    const { left, width } = this.chart.select;
    if (width < 2) return null;
    return { from: Math.round(this.chart.posToVal(left, "x") * 1000), to: Math.round(this.chart.posToVal(left + width, "x") * 1000) };
  }

  /** The later half of what is shown: what "why did it change" means without a selection. */
  range(): { from: number; to: number } {
    const { from, to } = this.options;
    return { from: Math.round((from + to) * 500), to: Math.round(to * 1000) };
  }

  clearSelection(): void {
    this.chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  focus(i: number | null): void {
    if (this.crowd !== undefined) { this.crowd?.highlight(i); return; }
    this.chart.setSeries(i === null ? null : this.slot(i), { focus: i !== null });
  }

  /**
   * Where series i is among uPlot's. A stack is drawn from its top down, each area opaque and the next one over it, which
   * needs no clipping between neighbours and is right where one of them has gaps.
   */
  private slot(i: number): number {
    return this.options.stacked ? this.columns.values.length - i : i + 1;
  }

  private data(): uPlot.AlignedData {
    const { times, values } = this.columns;
    if (this.crowd !== undefined) return [times, new Array<null>(times.length).fill(null)];
    // A logarithm has no place for zero and below.
    if (this.isLog()) return [times, ...values.map((c) => Array.from(c, (v) => (v > 0 ? v : null)))];
    if (!this.options.stacked) return [times, ...values.map(withNulls)];
    return [times, ...stackColumns(values, (i) => !this.hidden.has(i)).map(withNulls).reverse()];
  }

  /** Where line i is drawn at a step; null where it is not. */
  private drawnAt(i: number, x: number): number | null {
    if (this.crowd === undefined) return (this.chart.data[this.slot(i)] as (number | null)[])[x] ?? null;
    const v = this.columns.values[i]![x]!;
    return Number.isNaN(v) || (v <= 0 && this.isLog()) ? null : v;
  }

  /** Least and greatest value of the shown lines, which uPlot knows unless a crowd is drawn. */
  private extent(min: number | null, max: number | null): [number | null, number | null] {
    if (this.crowd === undefined) return [min, max];
    const { values, figures } = this.columns;
    let [low, high] = [Infinity, -Infinity];
    for (let i = 0; i < values.length; i++) {
      if (this.hidden.has(i)) continue;
      const [a, b] = [figures[i * FIGURES]!, figures[i * FIGURES + 1]!];
      if (this.isLog() && a <= 0) { for (const v of values[i]!) if (v > 0 && v < low) low = v; } else if (a < low) low = a;
      if (b > high) high = b;
    }
    return low <= high ? [low, high] : [null, null];
  }

  private uplotOptions(): uPlot.Options {
    const { options } = this;
    return {
      width: Math.max(this.host.clientWidth, 200),
      height: options.height,
      legend: { show: false },
      drawOrder: (options.stacked ? ["series", "axes"] : ["axes", "series"]) as uPlot.DrawOrderKey[],
      focus: { alpha: 0.2 },
      padding: [12, 26, 0, 4],
      tzDate: (s) => (options.zone === "utc" ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
      cursor: {
        points: { show: false },
        focus: { prox: -1 },
        drag: { x: true, y: false, setScale: false, dist: 6 },
        sync: { key: SYNC_KEY, setSeries: false, scales: ["x", null] },
        bind: { dblclick: () => () => { options.onZoomOut(); return null; } },
      },
      scales: {
        x: { time: true, range: () => [this.options.from, this.options.to] },
        y: this.valueScale(),
      },
      axes: [this.timeAxis(), this.valueAxis()],
      series: [{}, ...this.series()],
      hooks: {
        draw: [() => { this.crowd?.draw(); this.drawDots(); }],
        setCursor: [() => this.hover()],
        setSelect: [(u) => this.selected(u)],
      },
    };
  }

  private valueScale(): uPlot.Scale {
    const { stacked, scale } = this.options;
    if (this.isLog()) return { distr: 3, log: 10, range: (_u, a, b) => { const [min, max] = this.extent(a, b); return min !== null && max !== null && min > 0 && max > 0 ? uPlot.rangeLog(min, max === min ? min * 10 : max, 10, false) as [number, number] : [0.1, 1]; } };
    return { range: (_u, a, b) => yRange(...this.extent(a, b), stacked, scale === "zero") };
  }

  private series(): uPlot.Series[] {
    const n = this.columns.values.length;
    if (this.crowd !== undefined) return [{ points: { show: false } }];
    const list = this.columns.values.map((column, i): uPlot.Series => {
      const earlier = this.isEarlier(i);
      const color = this.lineColor(i);
      return {
        stroke: color,
        ...(earlier ? { dash: [5, 4] } : {}),
        width: n >= THIN_FROM ? 1 : 1.75,
        ...(earlier ? {} : this.fill(color, n)),
        points: { size: 4, fill: color, stroke: color, width: 0, filter: (u, at, show) => (show ? null : loneSamples(u.data[at]!)) },
        show: !this.hidden.has(i),
        label: String(i),
        pxAlign: column.length > 2000 ? 0 : 1,
      };
    });
    return this.options.stacked ? list.reverse() : list;
  }

  /** A stack is areas. A single line stands on a faint one, which makes its course easier to see. */
  private fill(color: string, n: number): Pick<uPlot.Series, "fill"> {
    if (this.options.stacked) return { fill: this.colors.over(color) };
    if (n > 1) return {};
    return {
      fill: (u) => {
        const g = u.ctx.createLinearGradient(0, u.bbox.top, 0, u.bbox.top + u.bbox.height);
        g.addColorStop(0, fadeColor(color, 0.22));
        g.addColorStop(1, fadeColor(color, 0.02));
        return g;
      },
    };
  }

  private color(i: number): string {
    return this.colors.series(this.options.colors[i] ?? i);
  }

  private isEarlier(i: number): boolean {
    return (this.columns.earlierOf?.[i] ?? -1) >= 0;
  }

  private lineColor(i: number): string {
    return this.isEarlier(i) ? fadeColor(this.color(i), 0.6) : this.color(i);
  }

  private timeAxis(): uPlot.Axis {
    return {
      ...this.axisStyle(),
      space: 72,
      size: (_u, values) => ((values ?? []).some((v) => v.includes("\n")) ? 42 : 28),
      values: (_u, splits, _axis, _space, incr) => timeLabels(splits, incr, this.options.zone),
    };
  }

  private valueAxis(): uPlot.Axis {
    return {
      ...this.axisStyle(),
      space: 36,
      size: (u, values) => {
        u.ctx.font = this.colors.font;
        const widest = Math.max(0, ...(values ?? []).map((v) => u.ctx.measureText(v).width));
        return Math.max(36, Math.ceil(widest / devicePixelRatio) + 18);
      },
      values: (_u, splits) => (this.options.format?.ticks ?? formatTicks)(splits),
    };
  }

  private axisStyle(): uPlot.Axis {
    const { muted, grid, gridOver } = this.colors;
    return {
      stroke: muted,
      font: this.colors.axisFont,
      grid: { stroke: this.options.stacked ? gridOver : grid, width: 1 },
      ticks: { show: false },
      border: { show: false },
      gap: 8,
    };
  }

  private selected(u: uPlot): void {
    const { left, width } = u.select;
    if (width < 6) return;
    // With Shift the selection stays, for other commands than zooming.
    if (this.shift) return;
    const [from, to] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.options.onZoom(Math.round(from * 1000), Math.round(to * 1000));
  }

  /** The shown series whose value at x is nearest to the pointer, by distance on the screen. */
  private nearest(x: number, top: number): { i: number; y: number } | null {
    const known = this.crowd?.nearest(x, top * uPlot.pxRatio);
    if (known != null) return known < 0 ? null : { i: known, y: this.chart.valToPos(this.drawnAt(known, x)!, "y") };
    const [log, at] = [this.isLog(), this.chart.posToVal(top, "y")];
    const target = log ? Math.log10(at) : at;
    let [best, bestDistance] = [-1, Infinity];
    for (let i = 0; i < this.columns.values.length; i++) {
      const drawn = this.hidden.has(i) ? null : this.drawnAt(i, x);
      if (drawn === null) continue;
      const distance = Math.abs((log ? Math.log10(drawn) : drawn) - target);
      if (distance < bestDistance) [best, bestDistance] = [i, distance];
    }
    return best < 0 ? null : { i: best, y: this.chart.valToPos(this.drawnAt(best, x)!, "y") };
  }

  /**
   * Where a dot is drawn. A dot with a place on its line lies there. Others have values of another unit than a rate: where
   * they exceed what the lines span they are drawn on a scale of their own, from the bottom to the top of the plot.
   */
  private dotY(d: Dot, canvas = false): number {
    if (d.y !== undefined) return this.chart.valToPos(d.y, "y", canvas);
    const { min = 0, max = 1 } = this.chart.scales["y"]!;
    const own = this.dotScale();
    if (own === null || min === null || max === null) return this.chart.valToPos(d.value, "y", canvas);
    const share = own.max > own.min ? (d.value - own.min) / (own.max - own.min) : 0.5;
    const { top, height } = this.chart.bbox;
    const y = top + height * (0.96 - 0.92 * share);
    return canvas ? y : (y - top) / uPlot.pxRatio;
  }

  /** The dots' own range, or null where they fit the lines'. */
  dotScale(): { min: number; max: number } | null {
    const dots = this.shownDots().filter((d) => d.y === undefined);
    if (dots.length === 0) return null;
    const { min, max } = this.chart.scales["y"]!;
    const [low, high] = [Math.min(...dots.map((d) => d.value)), Math.max(...dots.map((d) => d.value))];
    return min == null || max == null || (low >= min && high <= max) ? null : { min: Math.min(0, low), max: high };
  }

  private shownDots(): readonly Dot[] {
    const { dots, stacked, from, to } = this.options;
    if (stacked || !dots) return [];
    return dots.filter((d) => !this.hidden.has(d.series) && d.timeMS >= from * 1000 && d.timeMS <= to * 1000);
  }

  private drawDots(): void {
    const { ctx } = this.chart;
    const r = DOT_RADIUS * uPlot.pxRatio;
    ctx.save();
    for (const d of this.shownDots()) {
      const x = this.chart.valToPos(d.timeMS / 1000, "x", true);
      const y = this.dotY(d, true);
      ctx.beginPath();
      for (const [dx, dy] of [[0, -r], [r, 0], [0, r], [-r, 0]] as const) ctx.lineTo(x + dx, y + dy);
      ctx.closePath();
      ctx.fillStyle = this.color(d.series);
      ctx.strokeStyle = this.colors.surface;
      ctx.lineWidth = 1.25 * uPlot.pxRatio;
      ctx.fill();
      ctx.stroke();
    }
    const own = this.dotScale();
    if (own !== null) this.drawDotScale(own);
    ctx.restore();
  }

  /** The ends of the dots' own scale, at the right edge of the plot. */
  private drawDotScale({ min, max }: { min: number; max: number }): void {
    const { ctx, bbox } = this.chart;
    Object.assign(ctx, { font: this.colors.font, fillStyle: this.colors.muted, textAlign: "right", textBaseline: "middle" });
    for (const [v, share] of [[max, 0.04], [min, 0.96]] as const) ctx.fillText(`◆ ${formatShort(v)}`, bbox.left + bbox.width - 4 * uPlot.pxRatio, bbox.top + bbox.height * share);
  }

  private dotNear(left: number, top: number): Dot | null {
    let best: Dot | null = null;
    let bestDistance = DOT_REACH;
    for (const d of this.shownDots()) {
      const dx = this.chart.valToPos(d.timeMS / 1000, "x") - left;
      const dy = this.dotY(d) - top;
      const distance = Math.hypot(dx, dy);
      if (distance < bestDistance) [best, bestDistance] = [d, distance];
    }
    return best;
  }

  private hover(): void {
    const { idx, top = -1, left = -1, event } = this.chart.cursor;
    this.pointed = event && left >= 0 && top >= 0 ? this.dotNear(left, top) : null;
    this.chart.over.style.cursor = this.pointed && this.options.onDot ? "pointer" : "";
    if (this.pointed) {
      this.hoverDot(this.pointed, top);
      return;
    }
    // Charts that only follow another one's crosshair show no tooltip of their own.
    this.hoverAt(idx == null || !event || left < 0 || top < 0 ? null : idx, left, top);
  }

  /**
   * Among many lines every move finds another one. The cross-hair follows each frame; the tooltip and the line that stands out
   * follow up to 100 ms later, and the last move always counts.
   */
  private hoverAt(idx: number | null, left: number, top: number): void {
    clearTimeout(this.later);
    const wait = this.crowd && idx !== null ? this.hoveredMS + FOLLOW_MS - performance.now() : 0;
    if (wait > 0) this.later = window.setTimeout(() => this.hoverNow(idx, left, top), wait);
    else this.hoverNow(idx, left, top);
  }

  private hoverNow(idx: number | null, left: number, top: number): void {
    this.hoveredMS = performance.now();
    const found = idx === null ? null : this.nearest(idx, top);
    this.tip.hidden = this.dot.hidden = found === null;
    this.crowd?.highlight(found?.i ?? null);
    if (!found || idx === null || left < 0) return;
    const x = this.chart.valToPos(this.columns.times[idx]!, "x");
    this.fillTip(found.i, idx);
    this.place(x, found.y, top);
    this.dot.style.background = this.color(found.i);
  }

  private hoverDot(d: Dot, top: number): void {
    clearTimeout(this.later);
    const content = this.tipHead(d.series, d.timeMS, d.value, d.text);
    const hint = this.options.dotHint?.(d);
    this.tipShape = null;
    this.tip.replaceChildren(...content, labelTable(d.labels), ...(hint ? [node("div", "tip-hint", hint)] : []));
    this.tip.hidden = this.dot.hidden = false;
    this.place(this.chart.valToPos(d.timeMS / 1000, "x"), this.dotY(d), top);
    this.dot.style.background = this.color(d.series);
  }

  /** Only texts change where the last tooltip had the same names: elements that stay are laid out faster than new ones. */
  private fillTip(i: number, x: number): void {
    const labels = this.columns.labels[i]!;
    const head = this.tipHead(i, this.columns.times[x]! * 1000, this.columns.values[i]![x]!);
    const shape = Object.keys(labels).join();
    if (shape !== this.tipShape) {
      const table = labelTable(labels);
      this.tip.replaceChildren(...head, table);
      this.tipTexts = [...table.querySelectorAll(".metric-name, dd")];
      this.tipShape = shape;
      return;
    }
    head.forEach((n, k) => this.tip.children[k]!.replaceWith(n));
    const { __name__: name, ...rest } = labels;
    [...(name ? [name] : []), ...Object.values(rest)].forEach((text, k) => { const e = this.tipTexts[k]; if (e && e.textContent !== text) e.textContent = text; });
  }

  private tipHead(i: number, timeMS: number, v: number, text = (this.options.format?.long ?? formatLong)(v)): Node[] {
    const time = node("div", "tip-time", formatTime(timeMS, this.options.zone));
    const value = node("div", "tip-value", text);
    const swatch = node("span", "swatch", "");
    swatch.style.background = this.color(i);
    value.prepend(swatch);
    return [time, value];
  }

  /**
   * Next to the crosshair, on the side with more room; never over the point it describes. Its own size, the percentages, is
   * left to the layout of the frame: reading it would force one for every move.
   */
  private place(x: number, y: number, top: number): void {
    const { left: plotLeft, top: plotTop } = this.offset();
    this.dot.style.transform = `translate(${plotLeft + x}px, ${plotTop + y}px)`;
    const left = plotLeft + x > this.chart.width / 2 ? `max(0px, ${plotLeft + x - 14}px - 100%)` : `${plotLeft + x + 14}px`;
    this.tip.style.transform = `translate(${left}, max(0px, min(${plotTop + top - 20}px, ${this.options.height}px - 100%)))`;
  }

  private offset(): { left: number; top: number } {
    const { bbox } = this.chart;
    return { left: bbox.left / uPlot.pxRatio, top: bbox.top / uPlot.pxRatio };
  }
}

function yRange(min: number | null, max: number | null, stacked: boolean, zero: boolean): [number, number] {
  if (min === null || max === null) return [0, 1];
  if (stacked || zero) return min === 0 && max === 0 ? [0, 1] : uPlot.rangeNum(Math.min(0, min), Math.max(0, max), 0.1, true) as [number, number];
  // All values are equal: the axis spans from zero to twice the value.
  if (min === max) return min === 0 ? [0, 1] : min > 0 ? [0, min * 2] : [min * 2, 0];
  return uPlot.rangeNum(min, max, 0.1, true) as [number, number];
}

/** Hours and minutes; the date beneath where it changes. */
function timeLabels(splits: readonly number[], incr: number, zone: Zone): string[] {
  let day = "";
  return splits.map((s) => {
    const full = formatTime(s * 1000, zone);
    const [date, time] = [full.slice(5, 10), full.slice(11)];
    const fresh = date !== day;
    const first = day === "";
    day = date;
    if (incr >= 86_400) return date;
    const clock = incr >= 60 ? time.slice(0, 5) : formatMoment(s * 1000, zone, 0);
    const spansDays = formatTime(splits[0]! * 1000, zone).slice(0, 10) !== formatTime(splits[splits.length - 1]! * 1000, zone).slice(0, 10);
    return fresh && spansDays && (!first || time.startsWith("00:00")) ? `${clock}\n${date}` : clock;
  });
}

function element(host: HTMLElement, className: string): HTMLElement {
  const e = document.createElement("div");
  e.className = className;
  e.hidden = true;
  host.append(e);
  return e;
}

function node(tag: string, className: string, text: string): HTMLElement {
  const e = document.createElement(tag);
  e.className = className;
  e.textContent = text;
  return e;
}

function labelTable(labels: Labels): HTMLElement {
  const list = node("dl", "tip-labels", "");
  const { __name__: name, ...rest } = labels;
  if (name) list.append(node("dt", "metric-name", name));
  for (const [k, v] of Object.entries(rest)) list.append(node("dt", "", k), node("dd", "", v));
  if (list.childElementCount === 0) list.append(node("dd", "none", "no labels"));
  return list;
}
