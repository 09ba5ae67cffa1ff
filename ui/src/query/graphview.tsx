// The Graph tab: sends a range query, shows lines.
import { useMemo, useRef, useState } from "preact/hooks";
import { has, useAPI, useFeatures } from "../api/hooks.ts";
import type { Metadata, QueryData } from "../api/types.ts";
import { formatCount, plural } from "../lib/format.ts";
import { matrixColumns, withEarlier, type Columns, type Matrix } from "../lib/matrix.ts";
import { metricNames, unitFormat, unitOfExpr, type UnitFormat } from "../lib/metricunits.ts";
import type { Dot } from "../lib/profiles.ts";
import type { Grid } from "../lib/step.ts";
import { formatSpan } from "../lib/time.ts";
import type { PanelState } from "../lib/urlstate.ts";
import { lazy } from "../parts/lazy.tsx";
import { Empty } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { Chart } from "./chart.tsx";
import type { Marks } from "./exemplars.tsx";
import { LINES_MAX } from "./plot.ts";
import { useReason } from "./reason.ts";

/** More lines than this cannot be distinguished and make every movement of the mouse slow; one click draws them anyway. */
const SERIES_MAX = 200;

interface Props {
  panel: PanelState;
  data: QueryData;
  before: { data: QueryData; earlierMS: number } | null;
  grid: Grid;
  /** What was sent: its exemplars are drawn as well, and its metrics tell the unit. */
  expr: string;
  onChange: (p: Partial<PanelState>) => void;
  onZoom: (fromMS: number, toMS: number) => void;
  onZoomOut: () => void;
}

export function GraphView({ panel, data, before, grid, expr, onChange, onZoom, onZoomOut }: Props) {
  const { all } = panel;
  const [found, setMarks] = useState<Marks | null>(null);
  const { zone } = usePrefs();
  const matrix: Matrix = data.resultType === "range" ? data.matrix : NOTHING;
  const columns = useMemo(() => {
    const own = matrixColumns(matrix, grid, all ? Infinity : SERIES_MAX);
    return before?.data.resultType === "range" ? withEarlier(own, before.data.matrix, before.earlierMS) : own;
  }, [data, before, grid.start, grid.end, grid.step, all]);
  const crowd = columns.values.length > LINES_MAX;
  const marks = panel.exemplars && !crowd ? found : null;
  const latest = useRef(marks);
  latest.current = marks;
  const unit = useUnit(expr);
  const reason = useReason(columns.labels);
  if (matrix.names.length === 0) {
    return <Empty title="No data in this range">The query is valid, and no series has a sample in {formatSpan(grid.start, grid.end, zone, Date.now())}.</Empty>;
  }
  if (panel.heat) return <HeatMap matrix={matrix} grid={grid} expr={expr} onZoom={onZoom} onZoomOut={onZoomOut} />;
  return (
    <>
      <Notes columns={columns} onAll={() => onChange({ all: true })} />
      {crowd && (panel.stacked || panel.exemplars) && <p class="note">More than {LINES_MAX} lines are drawn as one picture, without a stack and without exemplars.</p>}
      {panel.exemplars && !crowd && <Exemplars expr={expr} grid={grid} columns={columns} stacked={panel.stacked} onMarks={setMarks} />}
      <Chart columns={columns} grid={grid} stacked={panel.stacked && !crowd} scale={panel.scale} format={unit ?? undefined} {...(unit ? { short: unit.short } : {})}
        dots={marks?.dots ?? NO_DOTS} dotHint={(d) => latest.current?.hint(d) ?? ""} onDot={(d) => latest.current?.open(d)} onZoom={onZoom} onZoomOut={onZoomOut}
        hidden={panel.hidden} only={panel.only} sort={panel.sort} find={panel.find} onView={onChange} brush={reason} />
    </>
  );
}

const NOTHING: Matrix = { labels: [], names: [], values: [], figures: new Float64Array(), native: new Map() };

const NO_DOTS: readonly Dot[] = [];

const HeatMap = lazy(() => import("./heatmap.tsx").then((m) => m.HeatMap));
const Exemplars = lazy(() => import("./exemplars.tsx").then((m) => m.Exemplars), null);

/** The unit of the values: metadata is looked up once for a query of one metric. */
function useUnit(expr: string): UnitFormat | null {
  const features = useFeatures();
  const names = useMemo(() => metricNames(expr), [expr]);
  const base = names.length === 1 ? names[0]! : "";
  const { result } = useAPI<Metadata>(base !== "" && has(features, "targets") ? "metadata" : null, { metric: base, limit_per_metric: 1 });
  return useMemo(() => unitFormat(unitOfExpr(expr, { [base]: result?.data[base]?.[0]?.unit ?? "" })), [expr, base, result]);
}

function Notes({ columns, onAll }: { columns: Columns; onAll: () => void }) {
  const { omitted, undrawable, histograms, values } = columns;
  return (
    <>
      {omitted > 0 && (
        <p class="note" data-omitted={omitted}>
          Drawing the {formatCount(values.length)} series with the largest last values, of {formatCount(values.length + omitted)}; {formatCount(omitted)} are hidden.
          <button type="button" class="link" onClick={onAll}>Draw all</button>
        </p>
      )}
      {undrawable > 0 && <p class="note">{plural(undrawable, "sample")} NaN or infinite; the lines have gaps there.</p>}
      {histograms > 0 && (
        <p class="note">{plural(histograms, "native histogram")}: the lines are their counts of observations. <code>histogram_quantile()</code> or <code>histogram_avg()</code> draws what they measured, and the heat map all of it.</p>
      )}
    </>
  );
}
