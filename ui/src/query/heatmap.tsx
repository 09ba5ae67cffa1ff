// A heat map of histograms: buckets over time, each with its count of observations.
import { useMemo } from "preact/hooks";
import { formatLong, formatShort } from "../lib/format.ts";
import { heatOf } from "../lib/heat.ts";
import { unitFormat, unitOfExpr } from "../lib/metricunits.ts";
import type { Matrix } from "../lib/matrix.ts";
import type { Grid } from "../lib/step.ts";
import { Empty } from "../parts/small.tsx";
import { HeatCanvas } from "./heatcanvas.tsx";

interface Props { matrix: Matrix; grid: Grid; expr: string; onZoom: (from: number, to: number) => void; onZoomOut: () => void }

export function HeatMap({ matrix, grid, expr, onZoom, onZoomOut }: Props) {
  const heat = useMemo(() => heatOf(matrix, grid), [matrix, grid.start, grid.end, grid.step]);
  const bound = useMemo(() => boundText(expr), [expr]);
  if (!heat) return <Empty title="No buckets here">A heat map needs native histograms, or series with the label <code>le</code>, as of <code>sum by (le) (rate(x_bucket[5m]))</code>.</Empty>;
  return <HeatCanvas heat={heat} grid={grid} bound={bound} count={formatLong} label={`Heat map of ${heat.rows.length} buckets over ${heat.columns} steps.`} onZoom={onZoom} onZoomOut={onZoomOut} />;
}

/** Bounds have the unit of what the histogram measures, whatever the rate of its counts is. */
function boundText(expr: string): (v: number) => string {
  const name = /[a-zA-Z_:][\w:]*_(?:bucket|seconds|bytes)\b/.exec(expr)?.[0].replace(/_bucket$/, "") ?? "";
  const unit = unitFormat(unitOfExpr(name));
  return (v) => (unit && Number.isFinite(v) ? unit.short(v) : formatShort(v));
}
