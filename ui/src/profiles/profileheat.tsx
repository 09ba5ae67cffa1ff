// A heat map of the number of profiles, or spans, by time and by total. A click on a cell lists its profiles, and a click on a
// profile opens its flame graph.
import { useMemo, useRef } from "preact/hooks";
import { useCall } from "../api/hooks.ts";
import { formatCount, plural } from "../lib/format.ts";
import { cellOf, finer, oneByOne, placeOf, profileHeat, type Cell, type One, type WireHeat } from "../lib/profileheat.ts";
import { parseType } from "../lib/profiles.ts";
import { autoStep, grid } from "../lib/step.ts";
import { formatTime } from "../lib/time.ts";
import { formatSpanSeconds } from "../lib/timespan.ts";
import { formatUnit } from "../lib/units.ts";
import { Empty, Failure, LabelList, Progress } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { HeatCanvas } from "../query/heatcanvas.tsx";
import { zoomOut } from "../query/timebar.tsx";
import { gridOf, Incomplete, STEP_MIN_MS, ZOOM_MIN_MS, type Bar, type OverProps, type Requested } from "./overtime.tsx";

/** Pixels of a cell, about. */
const CELL_PX = 10;
const ROWS_MAX = 200;

export function ProfileHeat({ state, type, now, selector, spans, onChange, bar }: OverProps & { spans: boolean; bar: Bar }) {
  const panel = useRef<HTMLElement>(null);
  const px = panel.current?.clientWidth ?? Math.min(innerWidth - 48, 1600);
  const end = state.endMS ?? now;
  const g = grid(end, state.rangeMS, state.stepMS ?? Math.max(STEP_MIN_MS, autoStep(state.rangeMS, (3 * px) / CELL_PX)));
  const of = spans ? { queryType: "HEATMAP_QUERY_TYPE_SPAN" } : {};
  const message = { profileTypeID: type.ID, labelSelector: selector, ...of };
  const tick = `${now}|${state.tenant}`;
  const { result, requested, error, loading, reload } = useCall<WireHeat>("SelectHeatmap", { ...message, start: String(g.start), end: String(g.end), step: g.step / 1000 }, tick);
  const drawn = gridOf(requested as Requested, g);
  const unit = parseType((requested as Requested).profileTypeID ?? type.ID).sampleUnit;
  const heat = useMemo(() => (result ? profileHeat(result.data, drawn) : null), [result]);
  const what = spans ? "span" : "profile";
  return (
    <section class="panel" aria-label="Over time" ref={panel}>
      <Progress on={loading} />
      {bar(`${what}s by time and by what each holds; a click lists them`)}
      {error && <Failure error={error} onRetry={reload} />}
      {!error && <Incomplete warnings={result?.warnings} />}
      {!error && result && !heat && (spans
        ? <Empty title="No spans in this range">An SDK has to label samples with <code>span_id</code>, as OpenTelemetry's profiling bridges do.</Empty>
        : <Empty title="No data in this range">No profile matches the selector.</Empty>)}
      {!error && heat && (
        <div class="result-area">
          <HeatCanvas heat={heat} grid={drawn} label={`Heat map of ${what}s by time and value.`} bound={(v) => formatUnit(v, unit)} count={(n) => plural(n, what)}
            hint={`Click to list ${spans ? "them" : "them one by one"}`} selected={state.cell && placeOf(heat, drawn, state.cell)}
            onCell={(at) => onChange({ cell: cellOf(heat, drawn, at.column, at.row) })}
            onZoom={(from, to) => onChange({ rangeMS: Math.max(to - from, ZOOM_MIN_MS), endMS: Math.max(to, from + ZOOM_MIN_MS), refreshMS: 0, base: null })}
            onZoomOut={() => onChange({ ...zoomOut(state, now), base: null })} />
        </div>
      )}
      {state.cell && <CellList cell={state.cell} message={{ ...message, exemplarType: spans ? "EXEMPLAR_TYPE_SPAN" : "EXEMPLAR_TYPE_INDIVIDUAL" }} tick={state.tenant} what={what} unit={unit} current={spans ? state.span : state.profile?.id ?? ""}
        onOpen={(o) => onChange({ profile: { id: o.id, timeMS: o.timeMS }, span: o.span, base: null })} onClose={() => onChange({ cell: null })} />}
    </section>
  );
}

interface CellProps { cell: Cell; message: object; tick: string; what: string; unit: string; current: string; onOpen: (o: One) => void; onClose: () => void }

function CellList({ cell, message, tick, what, unit, current, onOpen, onClose }: CellProps) {
  const { zone } = usePrefs();
  const { result, error, loading, reload } = useCall<WireHeat>("SelectHeatmap", { ...message, ...finer(cell) }, tick);
  const list = useMemo(() => (result ? oneByOne(result.data, cell) : []), [result, cell.start, cell.end, cell.low, cell.high]);
  return (
    <div class="cell-list" role="region" aria-label={`The ${what}s of a cell`}>
      <Progress on={loading} />
      <div class="panel-bar">
        <p class="stats"><span><b>{formatSpanSeconds(cell.start, cell.end, zone)}</b></span><span>{formatUnit(cell.low, unit)} to {formatUnit(cell.high, unit)}</span>{result && <span>{plural(list.length, what)}</span>}</p>
        <span class="spacer" />
        <button type="button" class="link" onClick={onClose}>Close the list</button>
      </div>
      {error && <Failure error={error} onRetry={reload} />}
      {!error && result && list.length === 0 && <Empty title={`No ${what} here any more`}>Its data has expired, or the cell belongs to another time range.</Empty>}
      {!error && list.length > 0 && (
        <div class="table-scroll cell-scroll" tabIndex={0} role="region" aria-label={`List of ${what}s`}>
          <table class="data">
            <thead><tr><th scope="col">Time</th><th scope="col" class="num">Value</th><th scope="col">{what === "span" ? "Span" : "Profile"}</th><th scope="col">Labels</th></tr></thead>
            <tbody>
              {list.slice(0, ROWS_MAX).map((o) => {
                const name = o.span !== "" ? o.span : o.id;
                return (
                  <tr key={`${o.id}|${o.span}|${o.value}`} class={name === current ? "current" : ""}>
                    <td>{formatTime(o.timeMS, zone)}</td>
                    <td class="num">{formatUnit(o.value, unit)}</td>
                    <td><button type="button" class="link" aria-current={name === current ? "true" : undefined} title="Its flame graph" onClick={() => onOpen(o)}><code>{name}</code></button>{o.trace !== "" && <span class="hint"> trace <code>{o.trace}</code></span>}</td>
                    <td><LabelList labels={o.labels} /></td>
                  </tr>
                );
              })}
            </tbody>
          </table>
          {list.length > ROWS_MAX && <p class="note">The {formatCount(ROWS_MAX)} largest of {formatCount(list.length)}.</p>}
        </div>
      )}
    </div>
  );
}
