// The profiles page: what a service spent over time as a graph whose dots are single profiles, and where it was spent as a
// flame graph, of the whole range or of the one profile whose dot was clicked. All of it is in the address.
import "../style/profiles.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { APIError, isAbort, NO_PROFILES } from "../api/client.ts";
import { useAutoRefresh, useCall, useServer } from "../api/hooks.ts";
import { decodeFlame, EMPTY_FLAME, type WireFlameGraph } from "../lib/flame.ts";
import { decodeFlameDiff, type WireFlameDiff } from "../lib/flamediff.ts";
import { figuresOf } from "../lib/profilefigures.ts";
import { defaultType, parseType, profileColumns, selectorOf, typeName, type ProfileDot, type ProfileType, type WireSeries } from "../lib/profiles.ts";
import { formatProfileState, parseProfileState, type ProfileState } from "../lib/profilestate.ts";
import { encodeMergeProfile, type MergeProfileRequest } from "../lib/proto.ts";
import { autoStep, grid, type Grid } from "../lib/step.ts";
import { before } from "../lib/reason.ts";
import { formatTime, type Zone } from "../lib/time.ts";
import { emptyPanel, emptyState, formatState } from "../lib/urlstate.ts";
import { formatUnit } from "../lib/units.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
import { saveBlob } from "../parts/save.ts";
import { Empty, Failure, Notice, Progress } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { Chart } from "../query/chart.tsx";
import { TimeBar, zoomOut } from "../query/timebar.tsx";
import { Controls } from "./controls.tsx";
import { FlameGraph } from "./flamegraph.tsx";

/** Clients push about this often; a finer graph would be gaps. */
const STEP_MIN_MS = 15_000;
const SERIES_MAX = 50;
const NODES_MAX = 8192;
const ZOOM_MIN_MS = 1000;
/** A profile is found by its id; a dot of a metric knows only about when it was taken. */
const LOOK_MS = 300_000;

export function ProfilesPage() {
  const nav = useNav();
  const { search } = nav.place;
  const state = useMemo(() => parseProfileState(search), [search]);
  const [now, setNow] = useState(Date.now);
  // Only a range that ends now changes, and a single profile does not.
  useAutoRefresh(state.endMS === null && !state.profile ? state.refreshMS : 0, () => setNow(Date.now()));
  const put = (change: Partial<ProfileState>) => {
    setNow(Date.now());
    const text = formatProfileState({ ...state, ...change });
    if (text !== search) nav.setSearch(text);
  };
  const server = useServer();
  server.tenant = state.tenant;
  const span = spanOf(state, now);
  const types = useCall<{ profileTypes?: ProfileType[] }>("ProfileTypes", { start: String(span.start), end: String(span.end) }, `${now}|${state.tenant}`);
  const known = types.result?.data.profileTypes ?? [];
  const type = state.type || defaultType(known);
  const missing = types.error instanceof APIError && types.error.type === NO_PROFILES;
  return (
    <div class="query-page profiles">
      <h1 class="unseen">Profiles</h1>
      <div class="toolbar">
        <Controls state={state} types={known} type={type} span={span} onChange={put} />
        <span class="spacer" />
        <TimeBar state={state} now={now} onChange={put} onRefresh={() => setNow(Date.now())} />
      </div>
      {missing && <Empty title="This server keeps no profiles">They are kept by <code>ferula serve</code>.</Empty>}
      {types.error && !missing && <Failure error={types.error} onRetry={types.reload} />}
      {!missing && !types.error && types.result && type === "" && (
        <Empty title="No profiles in this range">A server that profiles itself has its first ones within a minute.</Empty>
      )}
      {type !== "" && !missing && <Profiled state={state} type={parseType(type)} now={now} span={span} onChange={put} />}
    </div>
  );
}

interface Span { start: number; end: number }

/** Whole seconds, so that lists of names are not loaded again with every refresh of a second. */
function spanOf(s: ProfileState, now: number): Span {
  const end = Math.ceil((s.endMS ?? now) / 1000) * 1000;
  return { start: end - s.rangeMS, end };
}

interface ProfiledProps { state: ProfileState; type: ProfileType; now: number; span: Span; onChange: (c: Partial<ProfileState>) => void }

function Profiled({ state, type, now, span, onChange }: ProfiledProps) {
  const selector = selectorOf(state.service, state.matchers);
  return (
    <>
      <SeriesPanel {...{ state, type, now, selector, onChange }} />
      <FlamePanel {...{ state, type, now, span, selector, onChange }} />
    </>
  );
}

function SeriesPanel({ state, type, now, selector, onChange }: Omit<ProfiledProps, "span"> & { selector: string }) {
  const panel = useRef<HTMLElement>(null);
  const [all, setAll] = useState(false);
  const px = panel.current?.clientWidth ?? Math.min(innerWidth - 48, 1600);
  // Both ranges of a comparison are shown as one.
  const end = Math.max(state.endMS ?? now, state.base?.end ?? 0);
  const start = Math.min((state.endMS ?? now) - state.rangeMS, state.base?.start ?? Infinity);
  const g = grid(end, end - start, state.stepMS ?? Math.max(STEP_MIN_MS, autoStep(end - start, px)));
  const { average } = figuresOf(type, g.step);
  const { result, requested, error, loading, reload } = useCall<{ series?: WireSeries[] }>("SelectSeries", {
    profileTypeID: type.ID, labelSelector: selector, start: String(g.start), end: String(g.end), step: g.step / 1000,
    groupBy: state.groupBy === "" ? [] : [state.groupBy], exemplarType: "EXEMPLAR_TYPE_INDIVIDUAL",
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
      <div class="panel-bar"><h2>{typeName(type)}</h2><span class="spacer" /><p class="stats"><span>one dot is one profile; click it for its flame graph</span></p></div>
      {error && <Failure error={error} onRetry={reload} />}
      {!error && <Partial warnings={result?.warnings} />}
      {!error && result && columns.labels.length === 0 && <Empty title="No data in this range">Nothing that the selector fits was profiled.</Empty>}
      {!error && result && columns.labels.length > 0 && (
        <div class="result-area">
          {columns.omitted > 0 && <p class="note">The {SERIES_MAX} largest lines.<button type="button" class="link" onClick={() => setAll(true)}>Draw all</button></p>}
          <Chart columns={columns} grid={drawn} stacked={false} format={figures} short={figures.long} dots={dots}
            dotHint={() => "Click for the flame graph of this profile"}
            onDot={(d) => onChange({ profile: { id: (d as ProfileDot).id, timeMS: d.timeMS }, base: null })}
            onZoom={(from, to) => onChange({ rangeMS: Math.max(to - from, ZOOM_MIN_MS), endMS: Math.max(to, from + ZOOM_MIN_MS), refreshMS: 0, base: null })}
            onZoomOut={() => onChange({ ...zoomOut(state, now), base: null })}
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
  return { rangeMS: end - start, endMS: end, refreshMS: 0, profile: null, base: before({ start, end }) };
}

/** What is drawn lacks what the server could not read. */
function Partial({ warnings = [] }: { warnings?: readonly string[] | undefined }) {
  return <>{warnings.map((w) => <Notice kind="warning" key={w}>The data is not complete: {w}</Notice>)}</>;
}

interface Requested { profileTypeID?: string; start?: string; end?: string; step?: number }

/** The steps of the shown result. They differ from the current ones while a newer query runs. */
function gridOf(requested: Requested, current: Grid): Grid {
  if (requested.step === undefined) return current;
  return { start: Number(requested.start), end: Number(requested.end), step: Math.round(requested.step * 1000) };
}

function FlamePanel({ state, type, now, span, selector, onChange }: ProfiledProps & { selector: string }) {
  const { profile, base } = state;
  const [start, end] = profile ? [profile.timeMS - LOOK_MS, profile.timeMS + LOOK_MS] : [span.start, span.end];
  const of = (from: number, to: number) => ({ profileTypeID: type.ID, labelSelector: selector, start: String(from), end: String(to) });
  const message = { ...of(start, end), ...(profile ? { profileIdSelector: [profile.id] } : {}) };
  const tick = `${profile ? 0 : now}|${state.tenant}`;
  const comparing = base !== null && !profile;
  const one = useCall<{ flamegraph?: WireFlameGraph }>(comparing ? null : "SelectMergeStacktraces", { ...message, maxNodes: String(NODES_MAX) }, tick);
  const two = useCall<{ flamegraph?: WireFlameDiff }>(comparing ? "Diff" : null,
    comparing ? { left: { ...of(base.start, base.end), maxNodes: String(NODES_MAX) }, right: { ...message, maxNodes: String(NODES_MAX) } } : {}, tick);
  const { result, error, loading, reload } = comparing ? two : one;
  const flame = useMemo(() => (comparing ? (two.result ? decodeFlameDiff(two.result.data.flamegraph) : EMPTY_FLAME) : one.result ? decodeFlame(one.result.data.flamegraph) : EMPTY_FLAME), [comparing, one.result, two.result]);
  return (
    <section class="panel" aria-label="Where it was spent">
      <Progress on={loading} />
      <div class="panel-bar">
        <h2>{profile ? "One profile" : comparing ? "What changed" : "Whole range"}</h2>
        {profile && <OneProfile profile={profile} onBack={() => onChange({ profile: null })} />}
        {comparing && <Compared base={base} span={span} onEnd={() => onChange({ base: null })} />}
        <span class="spacer" />
        {!profile && !comparing && <button type="button" class="button quiet" id="compare" title="Against the same length of time before" onClick={() => onChange({ base: before(span), endMS: span.end, refreshMS: 0 })}>Compare with before</button>}
        <MetricsOf service={state.service} />
        <Download message={message} type={type} />
      </div>
      {!error && <Partial warnings={result?.warnings} />}
      {error ? <Failure error={error} onRetry={reload} /> : result
        ? <FlameGraph flame={flame} unit={type.sampleUnit} state={state} onChange={onChange} fileName={`${type.name}-${type.sampleType}`} /> : <div class="waiting" />}
    </section>
  );
}

/** The two ranges that are compared. */
function Compared({ base, span, onEnd }: { base: Span; span: Span; onEnd: () => void }) {
  const { zone } = usePrefs();
  const text = (s: Span) => formatSpanSeconds(s.start, s.end, zone);
  return (
    <>
      <p class="stats"><span>before: <b>{text(base)}</b></span><span>then: <b>{text(span)}</b></span></p>
      <button type="button" class="button" id="end-compare" onClick={onEnd}><icons.Left />Whole range</button>
    </>
  );
}

const formatSpanSeconds = (from: number, to: number, zone: Zone): string => {
  const [a, b] = [formatTime(Math.floor(from / 1000) * 1000, zone), formatTime(Math.floor(to / 1000) * 1000, zone)];
  return `${a} – ${a.slice(0, 10) === b.slice(0, 10) ? b.slice(11) : b}`;
};

/** From where it was spent back to the metrics of the same program, over the same time. */
function MetricsOf({ service }: { service: string }) {
  const nav = useNav();
  if (service === "") return null;
  const expr = `rate(process_cpu_seconds_total{job=${JSON.stringify(service)}}[$__rate_interval])`;
  const open = () => {
    const { rangeMS, endMS } = parseProfileState(nav.place.search);
    nav.go("query", formatState({ ...emptyState(), rangeMS, endMS, panels: [{ ...emptyPanel(), expr }, { ...emptyPanel(), expr: `process_resident_memory_bytes{job=${JSON.stringify(service)}}` }] }));
  };
  return <button type="button" class="button quiet" onClick={open}>Metrics of {service}</button>;
}

function OneProfile({ profile, onBack }: { profile: { id: string; timeMS: number }; onBack: () => void }) {
  const { zone } = usePrefs();
  return (
    <>
      <p class="stats"><span>of <b>{formatTime(profile.timeMS, zone)}</b></span><span><code>{profile.id}</code></span></p>
      <button type="button" class="button" id="whole-range" onClick={onBack}><icons.Left />Whole range</button>
    </>
  );
}

/** The same stacks as a file for `go tool pprof`. */
function Download({ message, type }: { message: MergeProfileRequest; type: ProfileType }) {
  const server = useServer();
  const [error, setError] = useState<Error | null>(null);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const load = () => {
    stop.current?.abort();
    stop.current = new AbortController();
    setError(null);
    server.callFile("querier.v1.QuerierService/SelectMergeProfile", encodeMergeProfile(message), stop.current.signal).then(gzipped).then(
      (blob) => saveBlob(blob, `${type.name}-${type.sampleType}.pb.gz`),
      (e: Error) => { if (!isAbort(e)) setError(e); },
    );
  };
  return (
    <>
      {error && <span class="hint" role="alert">{error.message}</span>}
      <button type="button" class="button quiet" title="Download as pprof, for go tool pprof" onClick={load}><icons.Load />pprof</button>
    </>
  );
}

/** Tools that read pprof expect it compressed. */
const gzipped = (blob: Blob): Promise<Blob> => new Response(blob.stream().pipeThrough(new CompressionStream("gzip"))).blob();
