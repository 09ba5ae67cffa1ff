// A list of all services, each with a small graph over time, its total and its share. A click opens a service.
import { useMemo, useState } from "preact/hooks";
import { useCall } from "../api/hooks.ts";
import { formatCount } from "../lib/format.ts";
import { figuresOf } from "../lib/profilefigures.ts";
import type { WireSeries } from "../lib/profiles.ts";
import { areaPath, servicesOf, type Service } from "../lib/services.ts";
import { autoStep, grid } from "../lib/step.ts";
import { formatShare, formatUnit } from "../lib/units.ts";
import { Empty, Failure, Filter, Progress } from "../parts/small.tsx";
import { useVirtual } from "../parts/virtual.ts";
import { gridOf, Incomplete, STEP_MIN_MS, type Bar, type OverProps, type Requested } from "./overtime.tsx";

const WIDTH = 240;
const HEIGHT = 28;
const ROW_PX = 45;
/** The largest, of a fleet that has more. */
const SERVICES_MAX = 1000;
/** A point for about every third pixel. */
const POINTS = 100;

export function Services({ state, type, now, selector, onChange, bar }: OverProps & { bar: Bar }) {
  const end = state.endMS ?? now;
  const g = grid(end, state.rangeMS, Math.max(STEP_MIN_MS, autoStep(state.rangeMS, 3 * POINTS)));
  const { average } = figuresOf(type, g.step);
  const { result, requested, error, loading, reload } = useCall<{ series?: WireSeries[] }>("SelectSeries", {
    profileTypeID: type.ID, labelSelector: selector, start: String(g.start), end: String(g.end), step: g.step / 1000, groupBy: ["service_name"],
    limit: String(SERVICES_MAX), ...(average ? { aggregation: "TIME_SERIES_AGGREGATION_TYPE_AVERAGE" } : {}),
  }, `${now}|${state.tenant}`);
  const drawn = gridOf(requested as Requested, g);
  const all = useMemo(() => servicesOf(result?.data.series ?? [], drawn, average), [result]);
  return (
    <section class="panel" aria-label="Services">
      <Progress on={loading} />
      {bar(average ? "each service with the mean of its profiles" : "each service with what it spent in this range")}
      {error && <Failure error={error} onRetry={reload} />}
      {!error && <Incomplete warnings={result?.warnings} />}
      {!error && result && all.length === 0 && <Empty title="No data in this range">No profile matches the selector.</Empty>}
      {!error && all.length > 0 && <List {...{ all, average }} unit={type.sampleUnit} find={state.services} onFind={(services) => onChange({ services })}
        onOpen={(service) => onChange({ service, services: "", over: "" })} />}
    </section>
  );
}

interface ListProps { all: readonly Service[]; average: boolean; unit: string; find: string; onFind: (text: string) => void; onOpen: (name: string) => void }

function List({ all, average, unit, find, onFind, onOpen }: ListProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const text = (typed ?? find).toLowerCase();
  const found = useMemo(() => all.filter((s) => s.name.toLowerCase().includes(text)), [all, text]);
  const whole = useMemo(() => all.reduce((n, s) => n + s.total, 0), [all]);
  const rows = useVirtual(found.length, ROW_PX);
  return (
    <div class="services">
      <div class="panel-bar">
        <Filter value={typed ?? find} onInput={(v) => { setTyped(v); onFind(v); }} label="Find services" />
        <p class="stats"><span><b>{formatCount(all.length)}</b> {all.length === SERVICES_MAX ? "services, the largest" : "services"}</span>{!average && <span>total <b>{formatUnit(whole, unit)}</b></span>}</p>
      </div>
      <div class="table-scroll services-scroll" ref={rows.ref} onScroll={rows.onScroll} tabIndex={0} role="region" aria-label="All services">
        <table class="data">
          <thead><tr><th scope="col">Service</th><th scope="col">Over time</th><th scope="col" class="num">{average ? "Mean" : "Total"}</th>{!average && <th scope="col" class="num">Share</th>}</tr></thead>
          <tbody>
            {rows.before > 0 && <tr aria-hidden="true" style={{ height: `${rows.before}px` }} />}
            {found.slice(rows.from, rows.to).map((s, k) => (
              <tr key={rows.whole ? s.name : k}>
                <th scope="row">{s.name === "" ? <i>without a name</i> : <button type="button" class="link" onClick={() => onOpen(s.name)}>{s.name}</button>}</th>
                <td><Course values={s.values} /></td>
                <td class="num">{formatUnit(s.total, unit)}</td>
                {!average && <td class="num">{formatShare(s.total, whole)}</td>}
              </tr>
            ))}
            {rows.after > 0 && <tr aria-hidden="true" style={{ height: `${rows.after}px` }} />}
          </tbody>
        </table>
        {found.length === 0 && <Empty title="No service matches" />}
      </div>
    </div>
  );
}

/** Each on a scale of its own: its course is what it shows, its size is in the figures. */
function Course({ values }: { values: Float64Array }) {
  const path = useMemo(() => areaPath(values, values.reduce((most, v) => (v > most ? v : most), 0), WIDTH, HEIGHT), [values]);
  return <svg class="course" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} preserveAspectRatio="none" aria-hidden="true"><path d={path} /></svg>;
}
