// The Table tab: the result at one instant, with every digit the server sent.
import { useMemo, useState } from "preact/hooks";
import type { QueryData, VectorSample } from "../api/types.ts";
import { formatCount, formatShort, parseSample } from "../lib/format.ts";
import { viewHistogram, type HistogramView } from "../lib/histogram.ts";
import { labelNames, seriesText, splitCommon } from "../lib/labels.ts";
import type { HistogramValue, MatrixSeries } from "../lib/matrix.ts";
import { formatTime } from "../lib/time.ts";
import { CopyButton, Empty, LabelList, Segments } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { SeriesName } from "./chart.tsx";

const ROWS_MAX = 500;
/** With more columns than this a row no longer fits a screen, and the selector's text reads better. */
const COLUMNS_MAX = 7;
/** Longer label values wrap instead of pushing the value out of sight. */
const LONG = 60;

export function TableView({ data }: { data: QueryData }) {
  switch (data.resultType) {
    case "vector": return data.result.length === 0 ? <Empty title="No data at this time" /> : <Vector samples={data.result} />;
    case "matrix": return data.result.length === 0 ? <Empty title="No data at this time" /> : <Matrix series={data.result} />;
    default: return <Single kind={data.resultType} value={data.result[1]} />;
  }
}

function Single({ kind, value }: { kind: string; value: string }) {
  return <div class="single"><span class="single-kind">{kind}</span><output>{value}</output></div>;
}

type Layout = "columns" | "text";
interface Sort { column: string; down: boolean }
const VALUE = "\0value"; // no label is named so

function Vector({ samples }: { samples: readonly VectorSample[] }) {
  const { common, varying } = useMemo(() => splitCommon(samples.map((s) => s.metric)), [samples]);
  const names = useMemo(() => labelNames(varying), [varying]);
  const [chosen, setLayout] = useState<Layout | null>(null);
  const [sort, setSort] = useState<Sort | null>(null);
  const [all, setAll] = useState(false);
  const layout = chosen ?? (names.length > 0 && names.length <= COLUMNS_MAX ? "columns" : "text");
  const sorted = useMemo(() => sortSamples(samples, sort), [samples, sort]);
  const rows = all ? sorted : sorted.slice(0, ROWS_MAX);
  const metric = varying.some((l) => l["__name__"]);
  const columns = layout === "text" ? ["\0series"] : [...(metric ? ["__name__"] : []), ...names];
  return (
    <>
      <div class="table-tools">
        {rows.length < samples.length
          ? <span class="note">First {formatCount(rows.length)} of {formatCount(samples.length)} rows.<button type="button" class="link" onClick={() => setAll(true)}>Show all</button></span>
          : layout === "columns" && Object.keys(common).length > 0 ? <div class="legend-common"><span>All rows</span><LabelList labels={common} /></div> : <span />}
        <Segments label="Layout" value={layout} options={[["columns", "Columns"], ["text", "Text"]]} onChange={setLayout} />
      </div>
      <div class="table-scroll">
        <table class="data result">
          <thead><tr>
            {columns.map((c) => <Head key={c} column={c} sort={sort} onSort={setSort} />)}
            <Head column={VALUE} sort={sort} onSort={setSort} />
          </tr></thead>
          <tbody>{rows.map((s) => <Row key={seriesText(s.metric)} sample={s} columns={columns} layout={layout} />)}</tbody>
        </table>
      </div>
    </>
  );
}

const TITLES: Record<string, string> = { __name__: "metric", "\0series": "Series", [VALUE]: "Value" };

function Head({ column, sort, onSort }: { column: string; sort: Sort | null; onSort: (s: Sort | null) => void }) {
  const mine = sort?.column === column ? sort : null;
  const firstDown = column === VALUE;
  const next = !mine ? { column, down: firstDown } : mine.down === firstDown ? { column, down: !firstDown } : null;
  return (
    <th scope="col" class={column === VALUE ? "num" : ""} aria-sort={mine ? (mine.down ? "descending" : "ascending") : "none"}>
      <button type="button" onClick={() => onSort(next)}>{TITLES[column] ?? column}{mine && <span class="arrow">{mine.down ? "↓" : "↑"}</span>}</button>
    </th>
  );
}

function Row({ sample, columns, layout }: { sample: VectorSample; columns: readonly string[]; layout: Layout }) {
  return (
    <tr>
      {layout === "text"
        ? <td class="series-cell"><SeriesName labels={sample.metric} /><CopyButton text={seriesText(sample.metric)} label="Copy selector" /></td>
        : columns.map((c) => <td key={c} class={(sample.metric[c]?.length ?? 0) > LONG ? "long" : ""}>{sample.metric[c] ?? <span class="none">–</span>}</td>)}
      <td class="num value">{sample.histogram ? <Histogram value={sample.histogram[1]} /> : sample.value?.[1]}</td>
    </tr>
  );
}

function valueOf(s: VectorSample): number {
  return parseSample(s.histogram ? s.histogram[1].count : (s.value?.[1] ?? "NaN"));
}

/** NaN goes last whichever way the rest is ordered: there is nothing to see in it. */
function compareValues(a: number, b: number, sign: number): number {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

function sortSamples(samples: readonly VectorSample[], sort: Sort | null): readonly VectorSample[] {
  if (!sort) return samples;
  const sign = sort.down ? -1 : 1;
  const { column } = sort;
  if (column === VALUE) return [...samples].sort((a, b) => compareValues(valueOf(a), valueOf(b), sign));
  const text = (s: VectorSample) => (column === "\0series" ? seriesText(s.metric) : (s.metric[column] ?? ""));
  return [...samples].sort((a, b) => sign * text(a).localeCompare(text(b), "en", { numeric: true }));
}

/** A selector with a range (`up[1m]`): the raw samples with their times. */
function Matrix({ series }: { series: readonly MatrixSeries[] }) {
  const { zone } = usePrefs();
  const [all, setAll] = useState(false);
  const rows = all ? series : series.slice(0, ROWS_MAX / 10);
  return (
    <>
      {rows.length < series.length && <p class="note">First {formatCount(rows.length)} of {formatCount(series.length)} series.<button type="button" class="link" onClick={() => setAll(true)}>Show all</button></p>}
      <div class="table-scroll">
        <table class="data result">
          <thead><tr><th scope="col">Series</th><th scope="col" class="num">Samples</th></tr></thead>
          <tbody>
            {rows.map((s) => (
              <tr key={seriesText(s.metric)}>
                <td class="series-cell"><SeriesName labels={s.metric} /></td>
                <td class="num value samples">
                  {(s.values ?? []).map(([t, v]) => <div key={t}>{v} <span class="at">{formatTime(t * 1000, zone)}</span></div>)}
                  {(s.histograms ?? []).map(([t, h]) => <div key={t}>count {h.count}, sum {h.sum} <span class="at">{formatTime(t * 1000, zone)}</span></div>)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Histogram({ value }: { value: HistogramValue }) {
  const view = useMemo(() => viewHistogram(value), [value]);
  return (
    <details class="histogram">
      <summary>
        <Sketch view={view} />
        <span class="histogram-figures">count {formatShort(view.count)} · sum {formatShort(view.sum)} · mean {formatShort(view.mean)}</span>
      </summary>
      <table class="buckets">
        <thead><tr><th scope="col">Bucket</th><th scope="col">Count</th></tr></thead>
        <tbody>{view.bars.map((b) => <tr key={b.text}><td>{b.text}</td><td><span class="bucket-bar" style={{ width: `${b.height * 100}%` }} /><span>{formatShort(b.count)}</span></td></tr>)}</tbody>
      </table>
    </details>
  );
}

const BAR = 4;

function Sketch({ view }: { view: HistogramView }) {
  const width = Math.max(view.bars.length, 1) * BAR;
  return (
    <svg class="sketch" width={Math.min(width, 240)} height="22" viewBox={`0 0 ${width} 22`} preserveAspectRatio="none" role="img" aria-label={`${view.bars.length} buckets`}>
      {view.bars.map((b, i) => <rect key={b.text} x={i * BAR} y={22 - Math.max(1, b.height * 22)} width={BAR - 1} height={Math.max(1, b.height * 22)} />)}
    </svg>
  );
}
