// The Table tab: the result at one instant, with every digit the server sent.
import "../style/table.css";
import { useMemo, useState } from "preact/hooks";
import type { InstantData, VectorSample } from "../api/types.ts";
import { formatCount, parseSample } from "../lib/format.ts";
import { classicHistograms, viewHistogram } from "../lib/histogram.ts";
import { commonLabels, countingKey, labelNames, seriesText } from "../lib/labels.ts";
import type { HistogramValue, MatrixSeries } from "../lib/matrix.ts";
import { formatTime } from "../lib/time.ts";
import type { PanelView } from "../lib/urlstate.ts";
import { CopyButton, Empty, Filter, LabelList, Segments } from "../parts/small.tsx";
import { useVirtual } from "../parts/virtual.ts";
import { usePrefs } from "../prefs.ts";
import { SeriesName } from "./chart.tsx";
import { HistogramCards, HistogramDetails } from "./histogramchart.tsx";

/** A table of more rows shows those in sight only. */
const ROWS_MAX = 500;
/** Height of a row of such a table, which table.css repeats. */
const ROW_PX = 33;
/** With more columns than this a row no longer fits a screen, and the selector's text reads better. */
const COLUMNS_MAX = 7;
/** Longer label values wrap instead of pushing the value out of sight. */
const LONG = 60;

interface Props { data: InstantData; /** When it was evaluated. */ timeMS: number; panel: PanelView; onChange: (p: Partial<PanelView>) => void }

export function TableView({ data, timeMS, panel, onChange }: Props) {
  const { zone } = usePrefs();
  return (
    <>
      <p class="note">At {formatTime(Math.floor(timeMS / 1000) * 1000, zone)}{zone === "utc" && " UTC"}, the end of the range.</p>
      <TableBody data={data} panel={panel} onChange={onChange} />
    </>
  );
}

function TableBody({ data, panel, onChange }: Omit<Props, "timeMS">) {
  switch (data.resultType) {
    case "vector": return data.result.length === 0 ? <Empty title="No data at this time" /> : <Vector samples={data.result} panel={panel} onChange={onChange} />;
    case "matrix": return data.result.length === 0 ? <Empty title="No data at this time" /> : <Matrix series={data.result} />;
    default: return <Single kind={data.resultType} value={data.result[1]} />;
  }
}

function Single({ kind, value }: { kind: string; value: string }) {
  return <div class="single"><span class="single-kind">{kind}</span><output>{value}</output></div>;
}

type Layout = "columns" | "text" | "bars";
interface Sort { column: string; down: boolean }
const VALUE = "\0value"; // no label is named so
const SERIES = "\0series";

const sortOf = (text: string): Sort | null => (text === "" ? null : { column: decodeColumn(text.slice(0, -1)), down: text.endsWith("-") });
const textOfSort = (s: Sort | null): string => (s === null ? "" : `${encodeColumn(s.column)}${s.down ? "-" : "+"}`);
/** The two columns that are no labels; in the address they have names that no label has. */
const encodeColumn = (c: string): string => (c === VALUE ? "(value)" : c === SERIES ? "(series)" : c);
const decodeColumn = (c: string): string => (c === "(value)" ? VALUE : c === "(series)" ? SERIES : c);

function Vector({ samples, panel, onChange }: { samples: readonly VectorSample[]; panel: PanelView; onChange: (p: Partial<PanelView>) => void }) {
  const common = useMemo(() => commonLabels(samples.map((s) => s.metric)), [samples]);
  const names = useMemo(() => labelNames(samples.map((s) => s.metric)).filter((n) => !(n in common)), [samples]);
  const classic = useMemo(() => classicHistograms(samples), [samples]);
  const [typed, setFind] = useState<string | null>(null);
  const find = typed ?? panel.find;
  const sort = useMemo(() => sortOf(panel.tableSort), [panel.tableSort]);
  const setSort = (next: Sort | null) => onChange({ tableSort: textOfSort(next) });
  const layout: Layout = panel.layout === "bars" ? (classic.length > 0 ? "bars" : "columns") : panel.layout !== "" ? panel.layout : (names.length > 0 && names.length <= COLUMNS_MAX ? "columns" : "text");
  const found = useMemo(() => searchSamples(samples, find), [samples, find]);
  const sorted = useMemo(() => sortSamples(found, sort), [found, sort]);
  const metric = common["__name__"] === undefined && samples.some((s) => s.metric["__name__"]);
  // Rows of a long table have one height, so that invisible rows need not exist. An opened histogram may have any height.
  const long = sorted.length > ROWS_MAX && !samples.some((s) => s.histogram);
  const view = useVirtual(long ? sorted.length : 0, ROW_PX);
  const rows = long ? sorted.slice(view.from, view.to) : sorted;
  const columns = layout === "text" ? [SERIES] : [...(metric ? ["__name__"] : []), ...names];
  return (
    <>
      <div class="table-tools">
        {long && <span class="note">{formatCount(sorted.length)} rows</span>}
        {layout === "columns" && Object.keys(common).length > 0 ? <div class="legend-common"><span>All rows</span><LabelList labels={common} /></div> : <span />}
        {samples.length > FIND_FROM && <Filter value={find} onInput={setFind} onDone={(v) => { setFind(null); onChange({ find: v }); }} label="Find in the rows" />}
        <Segments<Layout> label="Layout" value={layout} options={[["columns", "Columns"], ["text", "Text"], ...(classic.length > 0 ? [["bars", "Histograms"] as const] : [])]} onChange={(next) => onChange({ layout: next })} />
      </div>
      {layout === "bars" ? <HistogramCards all={classic} linear={panel.linear} onLinear={(linear) => onChange({ linear })} /> : <div class={`table-scroll ${long ? "long-table" : ""}`} {...(long ? { ref: view.ref, onScroll: view.onScroll, tabIndex: 0, role: "region", "aria-label": "Rows of the table" } : {})}>
        <table class="data result">
          <thead><tr>
            {columns.map((c) => <Head key={c} column={c} sort={sort} onSort={setSort} />)}
            <Head column={VALUE} sort={sort} onSort={setSort} />
          </tr></thead>
          <tbody>
            {long && view.before > 0 && <tr aria-hidden="true" style={{ height: `${view.before}px` }} />}
            {rows.map((s, k) => <Row key={long ? k : seriesText(s.metric)} sample={s} columns={columns} layout={layout} linear={panel.linear} onLinear={(linear) => onChange({ linear })} />)}
            {long && view.after > 0 && <tr aria-hidden="true" style={{ height: `${view.after}px` }} />}
          </tbody>
        </table>
      </div>}
    </>
  );
}

/** A box to search with is worth its room from here. */
const FIND_FROM = 10;

function searchSamples(samples: readonly VectorSample[], find: string): readonly VectorSample[] {
  const words = find.toLowerCase().split(/\s+/).filter((w) => w !== "");
  if (words.length === 0) return samples;
  return samples.filter((s) => { const text = `${seriesText(s.metric)} ${s.value?.[1] ?? ""}`.toLowerCase(); return words.every((w) => text.includes(w)); });
}

const TITLES: Record<string, string> = { __name__: "metric", [SERIES]: "Series", [VALUE]: "Value" };

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

interface RowProps { sample: VectorSample; columns: readonly string[]; layout: Layout; linear: boolean; onLinear: (on: boolean) => void }

function Row({ sample, columns, layout, linear, onLinear }: RowProps) {
  return (
    <tr>
      {layout === "text"
        ? <td class="series-cell"><SeriesName labels={sample.metric} /><CopyButton text={seriesText(sample.metric)} label="Copy selector" /></td>
        : columns.map((c) => <td key={c} class={(sample.metric[c]?.length ?? 0) > LONG ? "long" : ""}>{sample.metric[c] ?? <span class="none">–</span>}</td>)}
      <td class="num value">{sample.histogram ? <Native value={sample.histogram[1]} linear={linear} onLinear={onLinear} /> : sample.value?.[1]}</td>
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
  const keyed = samples.map((s) => ({ s, key: countingKey(column === SERIES ? seriesText(s.metric) : (s.metric[column] ?? "")) }));
  return keyed.sort((a, b) => (a.key === b.key ? 0 : a.key < b.key ? -sign : sign)).map(({ s }) => s);
}

/** Each of these rows has many samples. */
const RAW_ROWS = 50;
const RAW_ROWS_MORE = 200;

/** A selector with a range (`up[1m]`): the raw samples with their times. */
function Matrix({ series }: { series: readonly MatrixSeries[] }) {
  const { zone } = usePrefs();
  const [most, setMost] = useState(RAW_ROWS);
  const rows = series.slice(0, most);
  return (
    <>
      {rows.length < series.length && <p class="note">First {formatCount(rows.length)} of {formatCount(series.length)} series.<button type="button" class="link" onClick={() => setMost(most + RAW_ROWS_MORE)}>Show more</button></p>}
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

function Native({ value, linear, onLinear }: { value: HistogramValue; linear: boolean; onLinear: (on: boolean) => void }) {
  const view = useMemo(() => viewHistogram(value), [value]);
  return <HistogramDetails view={view} linear={linear} onLinear={onLinear} />;
}
