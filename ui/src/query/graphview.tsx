// The Graph tab: asks for a range, shows lines.
import { useMemo, useState } from "preact/hooks";
import type { QueryData } from "../api/types.ts";
import { formatCount, plural } from "../lib/format.ts";
import { matrixColumns, type Columns, type MatrixSeries } from "../lib/matrix.ts";
import type { Grid } from "../lib/step.ts";
import { formatSpan } from "../lib/time.ts";
import { Empty } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { Chart } from "./chart.tsx";

/** More lines than this cannot be told apart and make every movement of the mouse slow; one click draws them anyway. */
const SERIES_MAX = 200;

interface Props {
  data: QueryData;
  grid: Grid;
  stacked: boolean;
  onZoom: (fromMS: number, toMS: number) => void;
  onZoomOut: () => void;
}

export function GraphView({ data, grid, stacked, onZoom, onZoomOut }: Props) {
  const [all, setAll] = useState(false);
  const { zone } = usePrefs();
  const series: MatrixSeries[] = data.resultType === "matrix" ? data.result : [];
  const columns = useMemo(() => matrixColumns(series, grid, all ? Infinity : SERIES_MAX), [data, grid, all]);
  if (data.resultType !== "matrix") return <Empty title={`A ${data.resultType} has no graph`}>Look at the table.</Empty>;
  if (series.length === 0) {
    return <Empty title="No data in this range">The query is valid, and no series has a sample in {formatSpan(grid.start, grid.end, zone, Date.now())}.</Empty>;
  }
  return (
    <>
      <Notes columns={columns} onAll={() => setAll(true)} />
      <Chart columns={columns} grid={grid} stacked={stacked} onZoom={onZoom} onZoomOut={onZoomOut} />
    </>
  );
}

function Notes({ columns, onAll }: { columns: Columns; onAll: () => void }) {
  const { omitted, undrawable, histograms, values } = columns;
  return (
    <>
      {omitted > 0 && (
        <p class="note" data-omitted={omitted}>
          Drawing the first {formatCount(values.length)} of {formatCount(values.length + omitted)} series; {formatCount(omitted)} are hidden.
          <button type="button" class="link" onClick={onAll}>Draw all</button>
        </p>
      )}
      {undrawable > 0 && <p class="note">{plural(undrawable, "sample")} NaN or infinite; the lines have gaps there.</p>}
      {histograms > 0 && (
        <p class="note">{plural(histograms, "native histogram")}: the lines are their counts of observations. <code>histogram_quantile()</code> or <code>histogram_avg()</code> draws what they measured.</p>
      )}
    </>
  );
}
