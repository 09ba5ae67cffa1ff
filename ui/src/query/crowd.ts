// Draws many lines, instead of uPlot: one picture, drawn in slices between which the page handles events. Up to
// some hundreds the picture has the lines themselves; above that each pixel shows the number of lines at it. One line may be highlighted.
import type uPlot from "uplot";
import type { Column, Columns } from "../lib/matrix.ts";
import { Density, densityPixels } from "../lib/density.ts";
import { Places } from "../lib/places.ts";
import type { Palette } from "./colors.ts";

/** Milliseconds of one slice. */
const SLICE_MS = 12;
const THIN_FROM = 40;
/** Room above and below a highlighted line, and the steps in which its canvas grows: another size is another bitmap. */
const OUTLINE_PX = 8;
const OVER_STEP_PX = 64;

export interface CrowdView { columns: Columns; hidden: ReadonlySet<number>; log: boolean; /** The most that are drawn as lines. */ linesMax: number; color: (i: number) => string; dashed: (i: number) => boolean }

export class Crowd {
  /** How many lines the finished picture has; null while there is none. Tests read it. */
  lines: number | null = null;
  private readonly chart: uPlot;
  private readonly colors: Palette;
  private readonly view: () => CrowdView;
  private readonly over: HTMLCanvasElement;
  private picture: HTMLCanvasElement | null = null;
  private made = "";
  private job = 0;
  /** Where the lines of the picture lie, step by step. */
  private places: Places | null = null;
  /** What is highlighted, and over which picture: a movement within a step changes nothing. */
  private shownLine = "";

  constructor(chart: uPlot, colors: Palette, view: () => CrowdView) {
    this.chart = chart;
    this.colors = colors;
    this.view = view;
    this.over = document.createElement("canvas");
    this.over.className = "highlight";
    chart.over.append(this.over);
    chart.redraw(false, false);
  }

  destroy(): void {
    this.job++;
    this.over.remove();
  }

  /** The line nearest to a pixel of the plot at a step: -1 where there is none, null while that is not known. */
  nearest(step: number, y: number): number | null {
    return this.places ? this.places.nearest(step, y) : null;
  }

  /** Other values, or others shown: the picture is of the past. */
  reset(): void {
    this.places = null;
    this.made = "";
    this.job++;
    this.highlight(null);
  }

  /** Called whenever the chart has drawn its axes. */
  draw(): void {
    const { columns, hidden } = this.view();
    const { left, top, width, height } = this.chart.bbox;
    const shown = columns.values.flatMap((_, i) => (hidden.has(i) ? [] : [i]));
    const { min, max } = this.chart.scales["y"]!;
    const key = [width, height, min, max, shown.length, this.job].join();
    if (this.picture) this.chart.ctx.drawImage(this.picture, left, top, width, height);
    if (key === this.made) return;
    this.job++;
    this.made = [width, height, min, max, shown.length, this.job].join();
    void this.compute(shown, this.job);
  }

  /** Draws one line over the others; null none. */
  highlight(i: number | null): void {
    const { over, chart } = this;
    const { width, height } = chart.bbox;
    const key = i === null ? "" : [i, width, height, this.made].join();
    if (key === this.shownLine) return;
    this.shownLine = key;
    const ctx = over.getContext("2d")!;
    const column = i === null ? undefined : this.view().columns.values[i];
    if (!column) {
      ctx.setTransform(1, 0, 0, 1, 0, 0);
      ctx.clearRect(0, 0, over.width, over.height);
      return;
    }
    // The canvas is as high as the line needs: each of its pixels is copied for each frame.
    const y = this.toY();
    let [top, bottom] = [height, 0];
    for (const v of column) { const at = y(v); if (at < top) top = at; if (at > bottom) bottom = at; }
    top = Math.max(0, Math.floor(top) - OUTLINE_PX);
    const rows = Math.min(Math.ceil(height), Math.ceil((Math.max(bottom - top, 0) + OUTLINE_PX) / OVER_STEP_PX) * OVER_STEP_PX);
    top = Math.max(0, Math.min(top, Math.ceil(height) - rows));
    if (over.width !== width || over.height !== rows) Object.assign(over, { width, height: rows });
    over.style.height = `${rows / devicePixelRatio}px`;
    over.style.transform = `translateY(${top / devicePixelRatio}px)`;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.clearRect(0, 0, width, rows);
    ctx.setTransform(1, 0, 0, 1, 0, -top);
    for (const [style, pixels] of [[this.colors.surface, 4], [this.colors.text, 1.75]] as const) {
      Object.assign(ctx, { strokeStyle: style, fillStyle: style, lineWidth: pixels * devicePixelRatio });
      stroke(ctx, column, this.toX(), y);
    }
  }

  private toX(): { left: number; right: number } {
    const { times } = this.view().columns;
    const at = (x: number) => this.chart.valToPos(x, "x", true) - this.chart.bbox.left;
    return { left: at(times[0]!), right: at(times[times.length - 1]!) };
  }

  private toY(): (v: number) => number {
    const { min, max } = this.chart.scales["y"]! as { min: number; max: number };
    const { height } = this.chart.bbox;
    if (!this.view().log) return (v) => ((max - v) / (max - min)) * height;
    const [low, high] = [Math.log10(min), Math.log10(max)];
    return (v) => (v > 0 ? ((high - Math.log10(v)) / (high - low)) * height : NaN);
  }

  private async compute(shown: readonly number[], job: number): Promise<void> {
    let until = performance.now() + SLICE_MS;
    /** Whether to go on, after a pause where the slice is over. */
    const next = async (): Promise<boolean> => {
      if (performance.now() < until) return true;
      await new Promise((wake) => setTimeout(wake));
      until = performance.now() + SLICE_MS;
      return job === this.job;
    };
    const picture = document.createElement("canvas");
    Object.assign(picture, { width: Math.floor(this.chart.bbox.width), height: Math.floor(this.chart.bbox.height) });
    const ctx = picture.getContext("2d")!;
    if (!(await (shown.length <= this.view().linesMax ? this.lineByLine(ctx, shown, next) : this.density(ctx, shown, next)))) return;
    const places = await this.findPlaces(shown, next);
    if (!places) return;
    this.places = places;
    this.picture = picture;
    this.lines = shown.length;
    this.chart.redraw(false, false);
  }

  /** Null where another picture was begun meanwhile. */
  private async findPlaces(shown: readonly number[], next: () => Promise<boolean>): Promise<Places | null> {
    const { columns } = this.view();
    const places = new Places(shown, columns.times.length);
    const y = this.toY();
    for (let k = 0; k < shown.length; k++) {
      places.add(k, columns.values[shown[k]!]!, y);
      if (k % 16 === 15 && !(await next())) return null;
    }
    return places;
  }

  private async lineByLine(ctx: CanvasRenderingContext2D, shown: readonly number[], next: () => Promise<boolean>): Promise<boolean> {
    const { columns, color, dashed } = this.view();
    const [x, y] = [this.toX(), this.toY()];
    ctx.lineWidth = (shown.length > THIN_FROM ? 1 : 1.75) * devicePixelRatio;
    for (const i of shown) {
      ctx.strokeStyle = ctx.fillStyle = color(i);
      ctx.setLineDash(dashed(i) ? [5 * devicePixelRatio, 4 * devicePixelRatio] : []);
      stroke(ctx, columns.values[i]!, x, y);
      if (!(await next())) return false;
    }
    return true;
  }

  private async density(ctx: CanvasRenderingContext2D, shown: readonly number[], next: () => Promise<boolean>): Promise<boolean> {
    const { columns } = this.view();
    const { width, height } = ctx.canvas;
    const density = new Density({ width, height, ...this.toX() });
    const y = this.toY();
    for (let k = 0; k < shown.length; k++) {
      density.add(columns.values[shown[k]!]!, y);
      if (k % 16 === 15 && !(await next())) return false;
    }
    const { counts, max } = density.counts();
    if (!(await next())) return false;
    ctx.putImageData(new ImageData(densityPixels(counts, max, rgb(this.colors.accent)), width, height), 0, 0);
    return true;
  }
}

/** A line with gaps; a sample between two gaps is a point. */
function stroke(ctx: CanvasRenderingContext2D, column: Column, x: { left: number; right: number }, toY: (v: number) => number): void {
  const dx = column.length > 1 ? (x.right - x.left) / (column.length - 1) : 0;
  ctx.beginPath();
  let joined = false;
  for (let i = 0; i < column.length; i++) {
    const y = toY(column[i]!);
    if (Number.isNaN(y)) { joined = false; continue; }
    const at = x.left + i * dx;
    if (joined) ctx.lineTo(at, y);
    else if (Number.isNaN(toY(column[i + 1] ?? NaN))) ctx.fillRect(at - 2, y - 2, 4, 4);
    else ctx.moveTo(at, y);
    joined = true;
  }
  ctx.stroke();
}

function rgb(hex: string): [number, number, number] {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}
