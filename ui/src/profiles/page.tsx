// The profiles page: what a service spent over time as a graph whose dots are single profiles, and where it was spent as a
// flame graph, of the whole range or of the one profile whose dot was clicked. All of it is in the address.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { APIError, isAbort, NO_PROFILES } from "../api/client.ts";
import { useAutoRefresh, useCall, useServer } from "../api/hooks.ts";
import { decodeFlame, EMPTY_FLAME, type WireFlameGraph } from "../lib/flame.ts";
import { defaultType, parseType, profileColumns, selectorOf, typeName, type ProfileDot, type ProfileType, type WireSeries } from "../lib/profiles.ts";
import { formatProfileState, parseProfileState, type ProfileState } from "../lib/profilestate.ts";
import { encodeMergeProfile, type MergeProfileRequest } from "../lib/proto.ts";
import { autoStep, grid, type Grid } from "../lib/step.ts";
import { formatTime } from "../lib/time.ts";
import { formatUnit, formatUnitTicks } from "../lib/units.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
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
  const span = spanOf(state, now);
  const types = useCall<{ profileTypes?: ProfileType[] }>("ProfileTypes", { start: String(span.start), end: String(span.end) }, now);
  const known = types.result?.data.profileTypes ?? [];
  const type = state.type || defaultType(known);
  const missing = types.error instanceof APIError && types.error.type === NO_PROFILES;
  return (
    <div class="query-page profiles">
      <div class="toolbar">
        <Controls state={state} types={known} type={type} span={span} onChange={put} />
        <span class="spacer" />
        <TimeBar state={{ ...state, panels: [] }} now={now} onChange={put} onRefresh={() => setNow(Date.now())} />
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
  const px = panel.current?.clientWidth ?? Math.min(innerWidth - 48, 1600);
  const g = grid(state.endMS ?? now, state.rangeMS, state.stepMS ?? Math.max(STEP_MIN_MS, autoStep(state.rangeMS, px)));
  const { result, requested, error, loading, reload } = useCall<{ series?: WireSeries[] }>("SelectSeries", {
    profileTypeID: type.ID, labelSelector: selector, start: String(g.start), end: String(g.end), step: g.step / 1000,
    groupBy: state.groupBy === "" ? [] : [state.groupBy], exemplarType: "EXEMPLAR_TYPE_INDIVIDUAL",
  }, now);
  const unit = parseType((requested as Requested).profileTypeID ?? "").sampleUnit;
  const drawn = gridOf(requested as Requested, g);
  const { columns, dots } = useMemo(() => profileColumns(result?.data.series ?? [], drawn, SERIES_MAX), [result]);
  const format = useMemo(() => ({ long: (v: number) => formatUnit(v, unit), ticks: (t: readonly number[]) => formatUnitTicks(t, unit) }), [unit]);
  return (
    <section class="panel" aria-label="Over time" ref={panel}>
      <Progress on={loading} />
      <div class="panel-bar"><h2>{typeName(type)}</h2><span class="spacer" /><p class="stats"><span>one dot is one profile; click it for its flame graph</span></p></div>
      {error && <Failure error={error} onRetry={reload} />}
      {!error && <Partial warnings={result?.warnings} />}
      {!error && result && columns.labels.length === 0 && <Empty title="No data in this range">Nothing that the selector fits was profiled.</Empty>}
      {!error && result && columns.labels.length > 0 && (
        <div class="result-area">
          <Chart columns={columns} grid={drawn} stacked={false} format={format} short={format.long} dots={dots}
            dotHint={() => "Click for the flame graph of this profile"}
            onDot={(d) => onChange({ profile: { id: (d as ProfileDot).id, timeMS: d.timeMS } })}
            onZoom={(from, to) => onChange({ rangeMS: Math.max(to - from, ZOOM_MIN_MS), endMS: Math.max(to, from + ZOOM_MIN_MS), refreshMS: 0 })}
            onZoomOut={() => onChange(zoomOut({ ...state, panels: [] }, now))} />
        </div>
      )}
    </section>
  );
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
  const { profile } = state;
  const [start, end] = profile ? [profile.timeMS - LOOK_MS, profile.timeMS + LOOK_MS] : [span.start, span.end];
  const message = {
    profileTypeID: type.ID, labelSelector: selector, start: String(start), end: String(end),
    ...(profile ? { profileIdSelector: [profile.id] } : {}),
  };
  const { result, requested, error, loading, reload } = useCall<{ flamegraph?: WireFlameGraph }>("SelectMergeStacktraces", { ...message, maxNodes: String(NODES_MAX) }, profile ? 0 : now);
  const flame = useMemo(() => (result ? decodeFlame(result.data.flamegraph) : EMPTY_FLAME), [result]);
  const unit = parseType((requested as Requested).profileTypeID ?? "").sampleUnit;
  return (
    <section class="panel" aria-label="Where it was spent">
      <Progress on={loading} />
      <div class="panel-bar">
        <h2>{profile ? "One profile" : "Whole range"}</h2>
        {profile && <OneProfile profile={profile} onBack={() => onChange({ profile: null })} />}
        <span class="spacer" />
        <Download message={message} type={type} />
      </div>
      {!error && <Partial warnings={result?.warnings} />}
      {error ? <Failure error={error} onRetry={reload} /> : result ? <FlameGraph flame={flame} unit={unit} /> : <div class="waiting" />}
    </section>
  );
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
    server.callFile("querier.v1.QuerierService/SelectMergeProfile", encodeMergeProfile(message), stop.current.signal).then(
      (blob) => save(blob, `${type.name}-${type.sampleType}.pb`),
      (e: Error) => { if (!isAbort(e)) setError(e); },
    );
  };
  return (
    <>
      {error && <span class="hint" role="alert">{error.message}</span>}
      <button type="button" class="button quiet" title="Download as pprof, for go tool pprof" onClick={load}><icons.Down />pprof</button>
    </>
  );
}

function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
