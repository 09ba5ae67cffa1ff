// A heat map of histograms on a canvas, with its axes and a tooltip.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { formatLong, formatShort } from "../lib/format.ts";
import { heatOf, shade, type Heat } from "../lib/heat.ts";
import { unitFormat, unitOfExpr } from "../lib/metricunits.ts";
import type { Matrix } from "../lib/matrix.ts";
import type { Grid } from "../lib/step.ts";
import { formatMoment, formatTime } from "../lib/time.ts";
import { Empty } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { useIsDark } from "../theme.ts";
import { fadeColor, palette } from "./colors.ts";

const HEIGHT = 340;
const LEFT = 72;
const BOTTOM = 26;
const TOP = 8;
const RIGHT = 12;

interface Props { matrix: Matrix; grid: Grid; expr: string; onZoom: (from: number, to: number) => void; onZoomOut: () => void }

export function HeatMap({ matrix, grid, expr, onZoom, onZoomOut }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const dark = useIsDark();
  const { zone } = usePrefs();
  const [width, setWidth] = useState(0);
  const [tip, setTip] = useState<{ x: number; y: number } | null>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const heat = useMemo(() => heatOf(matrix, grid), [matrix, grid.start, grid.end, grid.step]);
  const bound = useMemo(() => boundText(expr), [expr]);
  useEffect(() => {
    if (!host.current) return undefined;
    const watch = new ResizeObserver(() => setWidth(host.current?.clientWidth ?? 0));
    watch.observe(host.current);
    return () => watch.disconnect();
  }, [heat === null]);
  useEffect(() => { if (heat && width > 0 && canvas.current) draw(canvas.current, heat, grid, width, zone, bound); }, [heat, width, dark, zone]);
  if (!heat) return <Empty title="No buckets here">A heat map needs native histograms, or series with the label <code>le</code>, as of <code>sum by (le) (rate(x_bucket[5m]))</code>.</Empty>;
  const cell = tip && cellAt(heat, width, tip.x, tip.y);
  const timeAt = (x: number) => grid.start + Math.max(0, Math.min(1, (x - LEFT) / (width - LEFT - RIGHT))) * (grid.end - grid.start);
  const up = () => {
    if (drag && Math.abs(drag.to - drag.from) > 6) onZoom(Math.round(timeAt(Math.min(drag.from, drag.to))), Math.round(timeAt(Math.max(drag.from, drag.to))));
    setDrag(null);
  };
  return (
    <div class="heatmap" ref={host} data-rows={heat.rows.length} onMouseLeave={() => { setTip(null); setDrag(null); }}>
      <canvas ref={canvas} role="img" aria-label={`Heat map of ${heat.rows.length} buckets over ${heat.columns} steps`} style={{ width: "100%", height: `${HEIGHT}px` }}
        onMouseMove={(e) => { setTip({ x: e.offsetX, y: e.offsetY }); if (drag) setDrag({ ...drag, to: e.offsetX }); }}
        onMouseDown={(e) => setDrag({ from: e.offsetX, to: e.offsetX })} onMouseUp={up} onDblClick={onZoomOut} />
      {drag && <div class="heat-select" style={{ left: `${Math.min(drag.from, drag.to)}px`, width: `${Math.abs(drag.to - drag.from)}px`, top: `${TOP}px`, height: `${HEIGHT - TOP - BOTTOM}px` }} />}
      {cell && tip && (
        <div class="tip" style={tip.x > width / 2 ? { left: "auto", right: `${width - tip.x + 12}px`, top: `${tip.y}px` } : { left: `${tip.x + 14}px`, top: `${tip.y}px` }}>
          <div class="tip-time">{formatTime(grid.start + cell.column * grid.step, zone)}</div>
          <div class="tip-value">{formatLong(cell.value)}</div>
          <div class="tip-labels"><span>{bound(cell.lower)} to {bound(cell.upper)}</span></div>
        </div>
      )}
    </div>
  );
}

/** Bounds have the unit of what the histogram measures, whatever the rate of its counts is. */
function boundText(expr: string): (v: number) => string {
  const name = /[a-zA-Z_:][\w:]*_(?:bucket|seconds|bytes)\b/.exec(expr)?.[0].replace(/_bucket$/, "") ?? "";
  const unit = unitFormat(unitOfExpr(name));
  return (v) => (unit && Number.isFinite(v) ? unit.short(v) : formatShort(v));
}

function cellAt(heat: Heat, width: number, x: number, y: number): { column: number; value: number; lower: number; upper: number } | null {
  const column = Math.floor(((x - LEFT) / (width - LEFT - RIGHT)) * heat.columns);
  const row = heat.rows[heat.rows.length - 1 - Math.floor(((y - TOP) / (HEIGHT - TOP - BOTTOM)) * heat.rows.length)];
  const value = row?.counts[column];
  return row === undefined || value === undefined || Number.isNaN(value) ? null : { column, value, lower: row.lower, upper: row.upper };
}

function draw(canvas: HTMLCanvasElement, heat: Heat, grid: Grid, width: number, zone: "local" | "utc", bound: (v: number) => string): void {
  const ratio = devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio) });
  const ctx = canvas.getContext("2d")!;
  const colors = palette();
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  const [w, h] = [width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
  const [dx, dy] = [w / heat.columns, h / heat.rows.length];
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
  ctx.textAlign = "center";
  const ticks = Math.max(2, Math.floor(w / 110));
  for (let i = 0; i <= ticks; i++) {
    const t = grid.start + (i / ticks) * (grid.end - grid.start);
    const text = formatMoment(Math.round(t / 1000) * 1000, zone, grid.end - grid.start).replace(/:\d\d$/, (s) => (grid.end - grid.start < 600_000 ? s : ""));
    ctx.textAlign = i === 0 ? "left" : i === ticks ? "right" : "center";
    ctx.fillText(text, LEFT + (i / ticks) * w, HEIGHT - BOTTOM / 2 + 2);
  }
}
