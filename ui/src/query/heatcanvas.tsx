// A heat map on a canvas, with axes, a tooltip, selection by dragging, and a cursor cell that arrow keys move. The caller
// provides the cells and their texts.
import "../style/heat.css";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { shade, type Heat } from "../lib/heat.ts";
import type { Grid } from "../lib/step.ts";
import { formatMoment, formatTime } from "../lib/time.ts";
import { usePrefs } from "../prefs.ts";
import { useIsDark } from "../theme.ts";
import { fadeColor, palette } from "./colors.ts";

const HEIGHT = 340;
const LEFT = 72;
const BOTTOM = 26;
const TOP = 8;
const RIGHT = 12;
/** A drag shorter than this is a click. */
const DRAG_PX = 6;

/** A cell by its step, and by its row from below. */
export interface Place { column: number; row: number }

interface Props {
  heat: Heat;
  grid: Grid;
  /** What it shows, in words. */
  label: string;
  bound: (v: number) => string;
  /** The value of a cell in words. */
  count: (v: number) => string;
  /** The tooltip's last line; "" for none. */
  hint?: string;
  selected?: Place | null;
  onCell?: (at: Place) => void;
  onZoom: (from: number, to: number) => void;
  onZoomOut: () => void;
}

/** What tests read: where cells are on the screen. */
type HeatHost = HTMLDivElement & { place?: (p: Place) => { x: number; y: number } };

interface Frame { left: number; top: number; width: number; height: number; dx: number; dy: number }

const frameOf = (heat: Heat, width: number): Frame => {
  const [w, h] = [width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
  return { left: LEFT, top: TOP, width: w, height: h, dx: w / heat.columns, dy: h / heat.rows.length };
};

const boxOf = (f: Frame, { column, row }: Place) => ({ left: f.left + column * f.dx, top: f.top + f.height - (row + 1) * f.dy, width: f.dx, height: f.dy });

export function HeatCanvas({ heat, grid, label, bound, count, hint = "", selected = null, onCell, onZoom, onZoomOut }: Props) {
  const host = useRef<HeatHost>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const dark = useIsDark();
  const { zone } = usePrefs();
  const [width, setWidth] = useState(0);
  const [tip, setTip] = useState<Place | null>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(host.current?.clientWidth ?? 0));
    watch.observe(host.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => { if (width > 0) draw(canvas.current!, heat, grid, width, zone, bound); }, [heat, width, dark, zone]);
  const frame = frameOf(heat, width);
  useLayoutEffect(() => { if (width > 0) host.current!.place = (p) => { const b = boxOf(frame, p); return { x: b.left + b.width / 2, y: b.top + b.height / 2 }; }; });
  const at = (e: MouseEvent): Place | null => {
    const place = { column: Math.floor((e.offsetX - frame.left) / frame.dx), row: heat.rows.length - 1 - Math.floor((e.offsetY - frame.top) / frame.dy) };
    return isFull(heat, place) ? place : null;
  };
  const timeAt = (x: number) => grid.start + Math.max(0, Math.min(1, (x - frame.left) / frame.width)) * (grid.end - grid.start);
  const up = (e: MouseEvent) => {
    const place = at(e);
    if (drag && Math.abs(drag.to - drag.from) > DRAG_PX) onZoom(Math.round(timeAt(Math.min(drag.from, drag.to))), Math.round(timeAt(Math.max(drag.from, drag.to))));
    else if (drag && place) onCell?.(place);
    setDrag(null);
  };
  const key = (e: KeyboardEvent) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const [dx, dy] = MOVES[e.key] ?? [0, 0];
    if (dx !== 0 || dy !== 0) setTip(moved(heat, tip ?? selected, dx, dy));
    else if (e.key === "Enter" && tip && onCell) onCell(tip);
    else if (e.key === "+") onZoom(Math.round(grid.start + (grid.end - grid.start) / 4), Math.round(grid.end - (grid.end - grid.start) / 4));
    else if (e.key === "-") onZoomOut();
    else if (e.key === "Escape") setTip(null);
    else return;
    e.preventDefault();
  };
  const shown = tip && isFull(heat, tip) ? tip : null;
  return (
    <div class="heatmap" ref={host} data-rows={heat.rows.length} data-columns={heat.columns} onKeyDown={key} onMouseLeave={() => { setTip(null); setDrag(null); }}>
      <canvas ref={canvas} role="img" tabIndex={0} aria-label={`${label} Arrow keys move from cell to cell, ${onCell ? "Enter opens one, " : ""}plus and minus zoom.`}
        style={{ width: "100%", height: `${HEIGHT}px` }}
        onMouseMove={(e) => { const p = at(e); if (p?.column !== tip?.column || p?.row !== tip?.row) setTip(p); if (drag) setDrag({ ...drag, to: e.offsetX }); }}
        onMouseDown={(e) => setDrag({ from: e.offsetX, to: e.offsetX })} onMouseUp={up} onDblClick={onZoomOut} />
      {drag && <div class="heat-select" style={{ left: `${Math.min(drag.from, drag.to)}px`, width: `${Math.abs(drag.to - drag.from)}px`, top: `${TOP}px`, height: `${frame.height}px` }} />}
      {selected && isFull(heat, selected) && <div class="heat-cell" style={px(boxOf(frame, selected))} />}
      {shown && <div class="heat-cell at" style={px(boxOf(frame, shown))} />}
      {shown && <Tip {...{ heat, grid, frame, at: shown, zone, bound, count, hint, width }} />}
    </div>
  );
}

const MOVES: Readonly<Record<string, readonly [number, number]>> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const px = (b: Record<string, number>) => Object.fromEntries(Object.entries(b).map(([k, v]) => [k, `${v}px`]));

const isFull = (heat: Heat, { column, row }: Place): boolean => heat.rows[row]?.counts[column] !== undefined && !Number.isNaN(heat.rows[row]!.counts[column]!);

/** The next cell that has anything in a direction; the last one at the right, where there was none. */
function moved(heat: Heat, from: Place | null, dx: number, dy: number): Place | null {
  if (!from) {
    for (let column = heat.columns - 1; column >= 0; column--) for (let row = heat.rows.length - 1; row >= 0; row--) if (isFull(heat, { column, row })) return { column, row };
    return null;
  }
  for (let [column, row] = [from.column + dx, from.row + dy]; column >= 0 && column < heat.columns && row >= 0 && row < heat.rows.length; column += dx, row += dy) {
    if (isFull(heat, { column, row })) return { column, row };
    // The left and right keys also stop at steps that have values in other rows only.
    if (dx !== 0) for (let d = 1; d < heat.rows.length; d++) for (const r of [row - d, row + d]) if (isFull(heat, { column, row: r })) return { column, row: r };
  }
  return from;
}

interface TipProps { heat: Heat; grid: Grid; frame: Frame; at: Place; zone: "local" | "utc"; bound: Props["bound"]; count: Props["count"]; hint: string; width: number }

function Tip({ heat, grid, frame, at, zone, bound, count, hint, width }: TipProps) {
  const b = boxOf(frame, at);
  const row = heat.rows[at.row]!;
  const side = b.left > width / 2 ? { left: "auto", right: `${width - b.left + 8}px` } : { left: `${b.left + b.width + 8}px` };
  return (
    <div class="tip" role="status" style={{ ...side, ...(b.top > HEIGHT / 2 ? { top: "auto", bottom: `${HEIGHT - b.top - b.height}px` } : { top: `${b.top}px` }) }}>
      <div class="tip-time">{formatTime(grid.start + at.column * grid.step, zone)}</div>
      <div class="tip-value">{count(row.counts[at.column]!)}</div>
      <div class="tip-labels"><span>{bound(row.lower)} to {bound(row.upper)}</span></div>
      {hint !== "" && <div class="tip-hint">{hint}</div>}
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, heat: Heat, grid: Grid, width: number, zone: "local" | "utc", bound: (v: number) => string): void {
  const ratio = devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio) });
  const ctx = canvas.getContext("2d")!;
  const colors = palette();
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  const { width: w, height: h, dx, dy } = frameOf(heat, width);
  const shades = Array.from({ length: 32 }, (_, i) => fadeColor(colors.accent, (i + 1) / 32));
  heat.rows.forEach((row, r) => {
    const y = TOP + h - (r + 1) * dy;
    for (let c = 0; c < heat.columns; c++) {
      const s = shade(row.counts[c]!, heat.max);
      if (!(s > 0)) continue;
      ctx.fillStyle = shades[Math.min(31, Math.floor(s * 32))]!;
      ctx.fillRect(LEFT + c * dx, y, Math.max(dx - (dx > 4 ? 0.5 : 0), 0.5), Math.max(dy - (dy > 4 ? 0.5 : 0), 0.5));
    }
  });
  ctx.fillStyle = colors.muted;
  ctx.font = colors.axisFont;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(heat.rows.length / Math.floor(h / 22)));
  heat.rows.forEach((row, r) => { if (r % every === 0) ctx.fillText(bound(row.upper), LEFT - 8, TOP + h - (r + 1) * dy + Math.min(dy / 2, 8)); });
  const ticks = Math.max(2, Math.floor(w / 110));
  for (let i = 0; i <= ticks; i++) {
    const t = grid.start + (i / ticks) * (grid.end - grid.start);
    const text = formatMoment(Math.round(t / 1000) * 1000, zone, grid.end - grid.start).replace(/:\d\d$/, (s) => (grid.end - grid.start < 600_000 ? s : ""));
    ctx.textAlign = i === 0 ? "left" : i === ticks ? "right" : "center";
    ctx.fillText(text, LEFT + (i / ticks) * w, HEIGHT - BOTTOM / 2 + 2);
  }
}
