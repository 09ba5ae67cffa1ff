// The upper panel of the profiles page: the cost over time. With several services it begins with a list of them. With one service
// it has lines whose dots are single profiles. A heat map counts profiles, or spans, by time and by total.
import type { ComponentChildren } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { useCall } from "../api/hooks.ts";
import { figuresOf } from "../lib/profilefigures.ts";
import { parseType, profileColumns, typeName, type ProfileDot, type ProfileType, type WireSeries } from "../lib/profiles.ts";
import { type Over, type ProfileState } from "../lib/profilestate.ts";
import { before } from "../lib/reason.ts";
import { autoStep, grid, type Grid } from "../lib/step.ts";
import { formatUnit } from "../lib/units.ts";
import { Empty, Failure, Notice, Progress, Segments } from "../parts/small.tsx";
import { Chart } from "../query/chart.tsx";
import { zoomOut } from "../query/timebar.tsx";
import { ProfileHeat } from "./profileheat.tsx";
import { Services } from "./services.tsx";

/** Clients push about this often; a finer graph would be gaps. */
export const STEP_MIN_MS = 15_000;
export const ZOOM_MIN_MS = 1000;
const SERIES_MAX = 50;

export interface OverProps { state: ProfileState; type: ProfileType; now: number; selector: string; onChange: (c: Partial<ProfileState>) => void; /** Changes only how it is shown. */ onShow: (c: Partial<ProfileState>) => void }

/** Null services are not known yet. */
export function OverTime({ services, ...props }: OverProps & { services: readonly string[] | null }) {
  const { state, type, onChange } = props;
  const over = shownOf(state, services);
  const kinds: [Exclude<Over, "">, string][] = [["lines", "Lines"], ["heat", "Heat map"], ["spans", "Spans"]];
  if (state.service === "") kinds.unshift(["services", "Services"]);
  const bar = (hint: ComponentChildren) => (
    <div class="panel-bar">
      <h2>{typeName(type)}</h2>
      <Segments<Exclude<Over, "">> label="Over time as" value={over ?? "lines"} options={kinds} onChange={(to) => onChange({ over: to, cell: null })} />
      <span class="spacer" /><p class="stats"><span>{hint}</span></p>
    </div>
  );
  if (over === null) return <section class="panel" aria-label="Over time">{bar("")}<div class="waiting" /></section>;
  if (over === "services") return <Services {...props} bar={bar} />;
  // Labels make most of a response with exemplars, and among the lines of all services dots are too many to click.
  const dotted = state.dots ?? (state.service !== "" || services?.length === 1);
  if (over === "lines") return <SeriesPanel {...props} dotted={dotted} bar={bar} />;
  return <ProfileHeat key={over} {...props} spans={over === "spans"} bar={bar} />;
}

/** An address that has chosen nothing begins with the services, if there are several. */
function shownOf(s: ProfileState, services: readonly string[] | null): Exclude<Over, ""> | null {
  if (s.over === "services") return s.service === "" ? "services" : "lines";
  if (s.over !== "") return s.over;
  if (s.service !== "" || s.matchers !== "" || s.groupBy !== "" || s.profile || s.base) return "lines";
  if (services === null) return null;
  return services.length > 1 ? "services" : "lines";
}

export type Bar = (hint: ComponentChildren) => ComponentChildren;

function SeriesPanel({ state, type, now, selector, onChange, onShow, dotted, bar }: OverProps & { dotted: boolean; bar: Bar }) {
  const panel = useRef<HTMLElement>(null);
  const { all } = state.lines;
  const px = panel.current?.clientWidth ?? Math.min(innerWidth - 48, 1600);
  // Both ranges of a comparison are shown as one.
  const end = Math.max(state.endMS ?? now, state.base?.end ?? 0);
  const start = Math.min((state.endMS ?? now) - state.rangeMS, state.base?.start ?? Infinity);
  const g = grid(end, end - start, state.stepMS ?? Math.max(STEP_MIN_MS, autoStep(end - start, px)));
  const { average } = figuresOf(type, g.step);
  const { result, requested, error, loading, reload } = useCall<{ series?: WireSeries[] }>("SelectSeries", {
    profileTypeID: type.ID, labelSelector: selector, start: String(g.start), end: String(g.end), step: g.step / 1000,
    groupBy: state.groupBy === "" ? [] : [state.groupBy], ...(dotted ? { exemplarType: "EXEMPLAR_TYPE_INDIVIDUAL" } : {}),
    ...(average ? { aggregation: "TIME_SERIES_AGGREGATION_TYPE_AVERAGE" } : {}), ...(all ? {} : { limit: String(SERIES_MAX + 1) }),
  }, `${now}|${state.tenant}`);
  const shown = parseType((requested as Requested).profileTypeID ?? "");
  const drawn = gridOf(requested as Requested, g);
  const figures = useMemo(() => figuresOf(shown, drawn.step), [shown.ID, drawn.step]);
  const alone = state.service === "" ? { service: "all" } : { service_name: state.service };
  const { columns, dots } = useMemo(() => profileColumns(result?.data.series ?? [], drawn, all ? Infinity : SERIES_MAX, {
    factor: figures.factor, text: (v) => `${formatUnit(v, shown.sampleUnit)} in this profile`, alone,
  }), [result, all]);
  return (
    <section class="panel" aria-label="Over time" ref={panel}>
      <Progress on={loading} />
      {bar(<>{dotted && "one dot is one profile; click it for its flame graph "}<label class="check"><input type="checkbox" checked={dotted} onChange={(e) => onChange({ dots: e.currentTarget.checked })} />Profiles</label></>)}
      {error && <Failure error={error} onRetry={reload} />}
      {!error && <Incomplete warnings={result?.warnings} />}
      {!error && result && columns.labels.length === 0 && <Empty title="No data in this range">No profile matches the selector.</Empty>}
      {!error && result && columns.labels.length > 0 && (
        <div class="result-area">
          {columns.omitted > 0 && <p class="note">The {SERIES_MAX} largest lines.<button type="button" class="link" onClick={() => onShow({ lines: { ...state.lines, all: true } })}>Draw all</button></p>}
          <Chart columns={columns} grid={drawn} stacked={false} format={figures} short={figures.long} dots={dots}
            dotHint={() => "Click for the flame graph of this profile"}
            onDot={(d) => onChange({ profile: { id: (d as ProfileDot).id, timeMS: d.timeMS }, span: "", base: null })}
            onZoom={(from, to) => onChange({ rangeMS: Math.max(to - from, ZOOM_MIN_MS), endMS: Math.max(to, from + ZOOM_MIN_MS), refreshMS: 0, base: null })}
            onZoomOut={() => onChange({ ...zoomOut(state, now), base: null })}
            hidden={state.lines.hidden} only={state.lines.only} sort={state.lines.sort} find={state.lines.find} onView={(v) => onShow({ lines: { ...state.lines, ...v } })}
            brush={{ onDiff: (from, to) => onChange(compared(from, to)) }} />
        </div>
      )}
    </section>
  );
}

/** A selected range, in whole seconds, against the same length before it. */
function compared(from: number, to: number): Partial<ProfileState> {
  const start = Math.floor(from / 1000) * 1000;
  const end = Math.max(Math.ceil(to / 1000) * 1000, start + ZOOM_MIN_MS);
  return { rangeMS: end - start, endMS: end, refreshMS: 0, profile: null, span: "", base: before({ start, end }) };
}

/** What is drawn lacks what the server could not read. */
export function Incomplete({ warnings = [] }: { warnings?: readonly string[] | undefined }) {
  return <>{warnings.map((w) => <Notice kind="warning" key={w}>The data is not complete: {w}</Notice>)}</>;
}

export interface Requested { profileTypeID?: string; start?: string; end?: string; step?: number }

/** The steps of the shown result. They differ from the current ones while a newer query runs. */
export function gridOf(requested: Requested, current: Grid): Grid {
  if (requested.step === undefined) return current;
  return { start: Number(requested.start), end: Number(requested.end), step: Math.round(requested.step * 1000) };
}
