// A flame graph on a canvas. It takes a decoded graph and a view of it (what is focused, what is searched for) and draws;
// it finds the node under a point. It holds no state beyond the last drawing: the component around it does.
import { hash, nodeAt, packageOf, pathTo, rootOf, shortName, type Flame, type FlameNode } from "../lib/flame.ts";
import { palette, type Palette } from "../query/colors.ts";

export const ROW_PX = 20;
const GAP_PX = 1;
const TEXT_FROM_PX = 28;
const NODE_MIN_PX = 0.4;

export interface FlameView {
  flame: Flame;
  focus: FlameNode | null;
  /** Whether a name is searched for; null when nothing is. */
  matches: ((name: number) => boolean) | null;
  hovered: FlameNode | null;
}

export class FlameCanvas {
  private readonly canvas: HTMLCanvasElement;
  private readonly ctx: CanvasRenderingContext2D;
  private readonly colors: Palette;
  private readonly tints: string[];
  private width = 0;
  private view: FlameView | null = null;
  private focusPath: ReadonlySet<FlameNode> = new Set();

  constructor(canvas: HTMLCanvasElement) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d")!;
    this.colors = palette();
    this.tints = Array.from({ length: 14 }, (_, i) => this.colors.over(this.colors.series(i)));
  }

  draw(view: FlameView, width: number): void {
    this.view = view;
    this.width = width;
    const ratio = devicePixelRatio || 1;
    const height = Math.max(1, view.flame.levels.length) * ROW_PX;
    // Setting a canvas' size clears it and costs an allocation, so only when it changes.
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ctx.clearRect(0, 0, width, height);
    this.ctx.font = this.colors.axisFont.replace("11.5px", "12px");
    this.ctx.textBaseline = "middle";
    this.focusPath = new Set(view.focus ? pathTo(view.flame, view.focus) : []);
    view.flame.levels.forEach((nodes, level) => nodes.forEach((n) => this.node(n, level)));
  }

  /** The node at a point, in CSS pixels of the canvas. */
  at(x: number, y: number): FlameNode | null {
    const { view } = this;
    if (!view || x < 0 || x >= this.width) return null;
    const level = Math.floor(y / ROW_PX);
    const { focus } = view;
    if (focus && level < focus.level) return pathTo(view.flame, focus)[level] ?? null;
    const [from, total] = this.range();
    return total > 0 ? nodeAt(view.flame, level, from + (x / this.width) * total) : null;
  }

  private range(): [number, number] {
    const shown = this.view!.focus ?? rootOf(this.view!.flame);
    return shown ? [shown.start, shown.total] : [0, 0];
  }

  private node(n: FlameNode, level: number): void {
    const view = this.view!;
    const [from, total] = this.range();
    const caller = view.focus !== null && this.focusPath.has(n) && n !== view.focus;
    if (view.focus && !caller && (n.level < view.focus.level || n.start < from || n.start >= from + total)) return;
    if (total <= 0 || n.total <= 0) return;
    const x = caller ? 0 : ((n.start - from) / total) * this.width;
    const w = caller ? this.width : (n.total / total) * this.width;
    if (w < NODE_MIN_PX) return;
    this.box(n, x, level * ROW_PX, Math.max(w - (w > 3 ? GAP_PX : 0), NODE_MIN_PX), caller);
  }

  private box(n: FlameNode, x: number, y: number, w: number, caller: boolean): void {
    const { ctx, colors } = this;
    const view = this.view!;
    const name = view.flame.names[n.name] ?? "";
    const found = view.matches === null || view.matches(n.name);
    ctx.globalAlpha = found ? (caller ? 0.55 : 1) : 0.28;
    ctx.fillStyle = level0(n) ? colors.grid : this.tints[hash(packageOf(name)) % this.tints.length]!;
    ctx.fillRect(x, y, w, ROW_PX - GAP_PX);
    if (view.matches !== null && found && !level0(n)) this.outline(x, y, w, colors.accent, 1.5);
    if (view.hovered === n) this.outline(x, y, w, colors.text, 1.25);
    ctx.globalAlpha = found ? 1 : 0.5;
    if (w >= TEXT_FROM_PX) this.text(name, x + 5, y + ROW_PX / 2, w - 9);
    ctx.globalAlpha = 1;
  }

  private outline(x: number, y: number, w: number, color: string, px: number): void {
    this.ctx.strokeStyle = color;
    this.ctx.lineWidth = px;
    this.ctx.strokeRect(x + px / 2, y + px / 2, Math.max(w - px, 0.5), ROW_PX - GAP_PX - px);
  }

  /** The name, or what is left of it where room is short. */
  private text(name: string, x: number, y: number, room: number): void {
    const { ctx } = this;
    let text = name;
    let width = ctx.measureText(text).width;
    if (width > room) {
      text = shortName(name);
      width = ctx.measureText(text).width;
    }
    if (width > room) text = `${text.slice(0, Math.max(0, Math.floor((text.length * room) / width) - 2))}…`;
    if (text.length < 2) return;
    ctx.fillStyle = this.colors.text;
    ctx.fillText(text, x, y);
  }
}

const level0 = (n: FlameNode): boolean => n.level === 0;
