// The lower panel of the profiles page: a flame graph of the whole range, of one profile or span, or of the difference between
// two ranges. If the server has cut the graph, the stacks of a focused function and exact figures of functions are requested apart.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { isAbort, type Server } from "../api/client.ts";
import { useCall, useServer } from "../api/hooks.ts";
import { decodeFlame, decodeFunctions, EMPTY_FLAME, focusOf, otherShare, pathTo, type Flame, type WireFlameGraph, type WireFunctions } from "../lib/flame.ts";
import { decodeFlameDiff, type WireFlameDiff } from "../lib/flamediff.ts";
import type { ProfileType } from "../lib/profiles.ts";
import { NODES, parseProfileState, type ProfileState } from "../lib/profilestate.ts";
import { encodeMergeProfile, type MergeProfileRequest } from "../lib/proto.ts";
import { before } from "../lib/reason.ts";
import { formatTime } from "../lib/time.ts";
import { formatSpanSeconds } from "../lib/timespan.ts";
import { emptyPanel, emptyState, formatState } from "../lib/urlstate.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
import { saveBlob } from "../parts/save.ts";
import { Failure, Progress } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { FlameGraph } from "./flamegraph.tsx";
import type { ExactOf } from "./functions.tsx";
import { Incomplete } from "./overtime.tsx";
import type { Span } from "./page.tsx";

/** A profile is found by its id; a dot of a metric knows only about when it was taken. */
const LOOK_MS = 300_000;
const FUNCTIONS_MAX = "20000";

interface Props {
  state: ProfileState; type: ProfileType; now: number; span: Span; selector: string;
  /** Loads what is current. */
  onChange: (c: Partial<ProfileState>) => void;
  /** Changes only how it is shown. */
  onShow: (c: Partial<ProfileState>) => void;
}

export function FlamePanel({ state, type, now, span, selector, onChange, onShow }: Props) {
  const { profile, base } = state;
  const [start, end] = profile ? [profile.timeMS - LOOK_MS, profile.timeMS + LOOK_MS] : [span.start, span.end];
  const of = (from: number, to: number) => ({ profileTypeID: type.ID, labelSelector: selector, start: String(from), end: String(to) });
  const message = { ...of(start, end), ...(profile ? { profileIdSelector: [profile.id] } : {}), ...(profile && state.span !== "" ? { spanSelector: [state.span] } : {}) };
  const tick = `${profile ? 0 : now}|${state.tenant}`;
  const comparing = base !== null && !profile;
  const maxNodes = String(state.nodes || NODES[0]);
  const one = useCall<{ flamegraph?: WireFlameGraph }>(comparing ? null : "SelectMergeStacktraces", { ...message, maxNodes }, tick);
  const two = useCall<{ flamegraph?: WireFlameDiff }>(comparing ? "Diff" : null, comparing ? { left: { ...of(base.start, base.end), maxNodes }, right: { ...message, maxNodes } } : {}, tick);
  const { result, error, loading, reload } = comparing ? two : one;
  const flame = useMemo(() => (comparing ? (two.result ? decodeFlameDiff(two.result.data.flamegraph) : EMPTY_FLAME) : one.result ? decodeFlame(one.result.data.flamegraph) : EMPTY_FLAME), [comparing, one.result, two.result]);
  const part = usePart(comparing || state.collapse ? "" : state.focus, flame, message, maxNodes, tick);
  const metrics = useMetricsOf(state.service);
  const exact = useExact(state.view !== "flame" && otherShare(flame) > 0, comparing ? [of(base.start, base.end), message] : [message], tick);
  return (
    <section class="panel" aria-label="Where it was spent">
      <Progress on={loading} />
      <div class="panel-bar">
        <h2>{profile ? (state.span !== "" ? "One span" : "One profile") : comparing ? "What changed" : "Whole range"}</h2>
        {profile && <OneProfile profile={profile} span={state.span} onBack={() => onChange({ profile: null, span: "" })} />}
        {comparing && <Compared base={base} span={span} onEnd={() => onChange({ base: null })} />}
        <span class="spacer" />
        {!profile && !comparing && <button type="button" class="button quiet" id="compare" title="Compares with the range of the same length just before" onClick={() => onChange({ base: before(span), endMS: span.end, refreshMS: 0 })}>Compare with the range before</button>}
        {metrics && <button type="button" class="button quiet" onClick={metrics}>Metrics of {state.service}</button>}
        <CallGraph message={message} type={type} />
        {state.span === "" && <Download message={message} type={type} />}
      </div>
      {!error && <Incomplete warnings={result?.warnings} />}
      {error ? <Failure error={error} onRetry={reload} /> : result
        ? <FlameGraph flame={part ?? flame} whole={flame.total} part={part !== null} exact={exact} unit={type.sampleUnit} state={state} onChange={onShow} fileName={`${type.name}-${type.sampleType}`} onMetrics={metrics} /> : <div class="waiting" />}
    </section>
  );
}

/** The stacks of the focused function alone, where the graph of all has too little of them; null until they are there. */
function usePart(focus: string, flame: Flame, message: object, maxNodes: string, tick: string): Flame | null {
  const site = useMemo(() => {
    const node = focusOf(flame, focus);
    return node && node.level > 0 && otherShare(flame, node) > 0 ? pathTo(flame, node).slice(1).map((n) => ({ name: flame.names[n.name] ?? "" })) : null;
  }, [flame, focus]);
  const { result, requested } = useCall<{ flamegraph?: WireFlameGraph }>(site ? "SelectMergeStacktraces" : null, { ...message, maxNodes, stackTraceSelector: { callSite: site ?? [] } }, tick);
  const mine = site !== null && JSON.stringify((requested as { stackTraceSelector?: { callSite?: unknown } }).stackTraceSelector?.callSite) === JSON.stringify(site);
  return useMemo(() => (mine && result ? decodeFlame(result.data.flamegraph) : null), [mine, result]);
}

/** What functions cost in whole stacks, of one range or of both sides of a difference; null where the graph has it all. */
function useExact(cut: boolean, messages: readonly object[], tick: string): ExactOf {
  const a = useCall<WireFunctions>(cut ? "SelectFunctions" : null, { ...messages[0], maxNodes: FUNCTIONS_MAX }, tick);
  const b = useCall<WireFunctions>(cut && messages.length > 1 ? "SelectFunctions" : null, { ...messages[1], maxNodes: FUNCTIONS_MAX }, tick);
  return useMemo(() => {
    // Other servers do not have this call. The figures are then those of the graph.
    if (!cut || !a.result || a.error) return null;
    if (messages.length === 1) return [decodeFunctions(a.result.data)];
    return b.result && !b.error ? [decodeFunctions(a.result.data), decodeFunctions(b.result.data)] : null;
  }, [cut, a.result, a.error, b.result, b.error, messages.length]);
}

/** The two ranges that are compared. */
function Compared({ base, span, onEnd }: { base: Span; span: Span; onEnd: () => void }) {
  const { zone } = usePrefs();
  const text = (s: Span) => formatSpanSeconds(s.start, s.end, zone);
  return (
    <>
      <p class="stats"><span>before: <b>{text(base)}</b></span><span>after: <b>{text(span)}</b></span></p>
      <button type="button" class="button" id="end-compare" onClick={onEnd}><icons.Left />Whole range</button>
    </>
  );
}

/** From where it was spent back to the metrics of the same program, over the same time. */
function useMetricsOf(service: string): (() => void) | null {
  const nav = useNav();
  if (service === "") return null;
  const expr = `rate(process_cpu_seconds_total{job=${JSON.stringify(service)}}[$__rate_interval])`;
  return () => {
    const { rangeMS, endMS } = parseProfileState(nav.place.search);
    nav.go("query", formatState({ ...emptyState(), rangeMS, endMS, panels: [{ ...emptyPanel(), expr }, { ...emptyPanel(), expr: `process_resident_memory_bytes{job=${JSON.stringify(service)}}` }] }));
  };
}

function OneProfile({ profile, span, onBack }: { profile: { id: string; timeMS: number }; span: string; onBack: () => void }) {
  const { zone } = usePrefs();
  return (
    <>
      <p class="stats"><span>of <b>{formatTime(profile.timeMS, zone)}</b></span><span><code>{profile.id}</code></span>{span !== "" && <span>span <code>{span}</code></span>}</p>
      <button type="button" class="button" id="whole-range" onClick={onBack}><icons.Left />Whole range</button>
    </>
  );
}

/** The same stacks as a file for `go tool pprof`. */
const Download = ({ message, type }: { message: MergeProfileRequest; type: ProfileType }) => (
  <Save text="pprof" title="Download as pprof, for go tool pprof" name={`${type.name}-${type.sampleType}.pb.gz`}
    load={(server, signal) => server.callFile(`${SERVICE}/SelectMergeProfile`, encodeMergeProfile(message), signal).then(gzipped)} />
);

/** Which function calls which, as a file for Graphviz. */
const CallGraph = ({ message, type }: { message: object; type: ProfileType }) => (
  <Save text="Call graph" title="Download the call graph as DOT, for Graphviz" name={`${type.name}-${type.sampleType}.dot`}
    load={(server, signal) => server.call<{ dot?: string }>(`${SERVICE}/SelectMergeStacktraces`, { ...message, format: "PROFILE_FORMAT_DOT" }, signal).then((r) => new Blob([r.data.dot ?? ""], { type: "text/vnd.graphviz" }))} />
);

const SERVICE = "querier.v1.QuerierService";

function Save({ text, title, name, load }: { text: string; title: string; name: string; load: (server: Server, signal: AbortSignal) => Promise<Blob> }) {
  const server = useServer();
  const [error, setError] = useState<Error | null>(null);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const start = () => {
    stop.current?.abort();
    stop.current = new AbortController();
    setError(null);
    load(server, stop.current.signal).then((blob) => saveBlob(blob, name), (e: Error) => { if (!isAbort(e)) setError(e); });
  };
  return (
    <>
      {error && <span class="hint" role="alert">{error.message}</span>}
      <button type="button" class="button quiet" title={title} onClick={start}><icons.Load />{text}</button>
    </>
  );
}

/** Tools that read pprof expect it compressed. */
const gzipped = (blob: Blob): Promise<Blob> => new Response(blob.stream().pipeThrough(new CompressionStream("gzip"))).blob();
