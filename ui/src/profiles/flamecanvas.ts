// A flame graph on a canvas. Input: a decoded graph, the focused node and the search. Output: the drawing, the node at a point and
// the position of a node. The component that contains the canvas holds the state. The tooltip and the outline of a box are elements
// over the canvas, so that a movement of the pointer draws nothing.
import { hash, nodeAt, packageOf, pathTo, rootOf, shortName, type Flame, type FlameNode } from "../lib/flame.ts";
import { change, type DiffNode, type FlameDiff } from "../lib/flamediff.ts";
import { blendColors, palette, type Palette } from "../query/colors.ts";

export const ROW_PX = 20;
/** Browsers draw nothing on a canvas taller than some 32,000 of the screen's own pixels. */
export const LEVELS_MAX = 700;
const GAP_PX = 1;
const TEXT_FROM_PX = 28;
const NODE_MIN_PX = 0.4;

export interface FlameView {
  flame: Flame;
  focus: FlameNode | null;
  /** Whether a name is searched for; null when nothing is. */
  matches: ((name: number) => boolean) | null;
  /** Roots at the bottom. */
  upward: boolean;
  /** Names at their ends, where functions differ, instead of their beginnings. */
  alignRight: boolean;
  /** Colours by what functions take themselves, instead of by package. */
  bySelf: boolean;
}

export interface Box { x: number; y: number; w: number }

export const isDiff = (f: Flame): f is FlameDiff => "right" in f;

export const rowsOf = (flame: Flame): number => Math.max(1, Math.min(flame.levels.length, LEVELS_MAX));

const TINTS = 14;

const tintOf = (name: string): number => hash(packageOf(name)) % TINTS;

/** The colour of a package's boxes. */
export function packageColor(name: string): string {
  const colors = palette();
  return colors.over(colors.series(hash(name) % TINTS));
}

export class FlameCanvas {
  private readonly canvas: HTMLCanvasElement;
  private readonly ctx: CanvasRenderingContext2D;
  private readonly colors: Palette;
  private readonly tints: string[];
  private readonly changes: string[];
  private readonly heats: string[];
  private width = 0;
  private view: FlameView | null = null;
  private focusPath: ReadonlySet<FlameNode> = new Set();
  /** Of each name, computed once a graph. */
  private tintOf: string[] = [];
  private tintsFor: readonly string[] | null = null;
  private maxSelf = 0;

  constructor(canvas: HTMLCanvasElement) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d")!;
    this.colors = palette();
    this.tints = Array.from({ length: TINTS }, (_, i) => this.colors.over(this.colors.series(i)));
    this.changes = Array.from({ length: 21 }, (_, i) => { const c = (i - 10) / 10; return blendColors(c > 0 ? this.colors.more : this.colors.less, this.colors.grid, Math.min(1, Math.abs(c)) * 0.75); });
    this.heats = Array.from({ length: 21 }, (_, i) => blendColors(this.colors.accent, this.colors.grid, (i / 20) * 0.7));
  }

  draw(view: FlameView, width: number): void {
    this.view = view;
    this.width = width;
    const ratio = devicePixelRatio || 1;
    const rows = rowsOf(view.flame);
    // Setting a canvas' size clears it and costs an allocation, so only when it changes.
    const [w, h] = [Math.round(width * ratio), Math.round(rows * ROW_PX * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ctx.clearRect(0, 0, width, rows * ROW_PX);
    this.ctx.font = this.colors.axisFont.replace("11.5px", "12px");
    this.ctx.textBaseline = "middle";
    this.focusPath = new Set(view.focus ? pathTo(view.flame, view.focus) : []);
    if (this.tintsFor !== view.flame.names) {
      this.tintsFor = view.flame.names;
      this.tintOf = view.flame.names.map((name) => this.tints[tintOf(name)]!);
    }
    if (view.bySelf) this.maxSelf = view.flame.levels.reduce((most, level) => level.reduce((m, n) => Math.max(m, n.self), most), 0);
    view.flame.levels.slice(0, rows).forEach((nodes) => nodes.forEach((n) => this.node(n)));
  }

  /** The node at a point, in CSS pixels of the canvas. */
  at(x: number, y: number): FlameNode | null {
    const { view } = this;
    if (!view || x < 0 || x >= this.width) return null;
    const row = Math.floor(y / ROW_PX);
    const level = view.upward ? rowsOf(view.flame) - 1 - row : row;
    const { focus } = view;
    if (focus && level < focus.level) return pathTo(view.flame, focus)[level] ?? null;
    const [from, total] = this.range();
    return total > 0 ? nodeAt(view.flame, level, from + (x / this.width) * total) : null;
  }

  /** Where a node was drawn; null if it was not. */
  boxOf(n: FlameNode): Box | null {
    const { view } = this;
    if (!view || n.level >= rowsOf(view.flame)) return null;
    const [from, total] = this.range();
    const caller = view.focus !== null && this.focusPath.has(n) && n !== view.focus;
    if (view.focus && !caller && (n.level < view.focus.level || n.start < from || n.start >= from + total)) return null;
    if (total <= 0 || n.total <= 0) return null;
    const x = caller ? 0 : ((n.start - from) / total) * this.width;
    const w = caller ? this.width : (n.total / total) * this.width;
    const row = view.upward ? rowsOf(view.flame) - 1 - n.level : n.level;
    return w < NODE_MIN_PX ? null : { x, y: row * ROW_PX, w: Math.max(w - (w > 3 ? GAP_PX : 0), NODE_MIN_PX) };
  }

  private range(): [number, number] {
    const view = this.view!;
    if (view.focus) return [view.focus.start, view.focus.total];
    const root = rootOf(view.flame);
    return root ? [root.start, root.total] : [0, 0];
  }

  private node(n: FlameNode): void {
    const box = this.boxOf(n);
    if (!box) return;
    const { ctx, colors } = this;
    const view = this.view!;
    const caller = view.focus !== null && n !== view.focus && this.focusPath.has(n);
    const found = view.matches === null || view.matches(n.name);
    ctx.globalAlpha = found ? (caller ? 0.55 : 1) : 0.28;
    ctx.fillStyle = this.fill(n);
    ctx.fillRect(box.x, box.y, box.w, ROW_PX - GAP_PX);
    if (view.matches !== null && found && n.level > 0) this.outline(box, colors.accent, 1.5);
    ctx.globalAlpha = found ? 1 : 0.5;
    if (box.w >= TEXT_FROM_PX) this.text(view.flame.names[n.name] ?? "", box.x + 5, box.y + ROW_PX / 2, box.w - 9);
    ctx.globalAlpha = 1;
  }

  private fill(n: FlameNode): string {
    const { flame } = this.view!;
    if (isDiff(flame)) return this.changes[Math.round(change((n as DiffNode).left, (n as DiffNode).right, flame) * 10) + 10] ?? this.colors.grid;
    if (n.level > 0 && this.view!.bySelf) return this.heats[this.maxSelf > 0 ? Math.round(20 * Math.sqrt(n.self / this.maxSelf)) : 0]!;
    return n.level === 0 ? this.colors.grid : this.tintOf[n.name] ?? this.colors.grid;
  }

  private outline({ x, y, w }: Box, color: string, px: number): void {
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
    if (width > room) {
      const keep = Math.max(0, Math.floor((text.length * room) / width) - 2);
      text = this.view!.alignRight ? `…${text.slice(text.length - keep)}` : `${text.slice(0, keep)}…`;
    }
    if (text.length < 2) return;
    ctx.fillStyle = this.colors.text;
    ctx.fillText(text, x, y);
  }
}
