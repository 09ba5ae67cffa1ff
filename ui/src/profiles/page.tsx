// The profiles page: the cost of a service over time, as a graph whose dots are single profiles, and a flame graph
// of the whole range or of the profile whose dot was clicked. The state of the page is in the address.
import "../style/profiles.css";
import { useMemo, useState } from "preact/hooks";
import { APIError, NO_PROFILES } from "../api/client.ts";
import { useAutoRefresh, useCall, useServer } from "../api/hooks.ts";
import { defaultType, parseType, selectorOf, type ProfileType } from "../lib/profiles.ts";
import { formatProfileState, parseProfileState, type ProfileState } from "../lib/profilestate.ts";
import { useNav } from "../nav.ts";
import { Empty, Failure } from "../parts/small.tsx";
import { TimeBar } from "../query/timebar.tsx";
import { Controls } from "./controls.tsx";
import { FlamePanel } from "./flamepanel.tsx";
import { OverTime } from "./overtime.tsx";

export function ProfilesPage() {
  const nav = useNav();
  const { search } = nav.place;
  const state = useMemo(() => parseProfileState(search), [search]);
  const [now, setNow] = useState(Date.now);
  // Only a range that ends now has new data after a refresh; a single profile has none.
  useAutoRefresh(state.endMS === null && !state.profile ? state.refreshMS : 0, () => setNow(Date.now()));
  /** What is drawn of the same data differs: nothing is loaded again. */
  const show = (change: Partial<ProfileState>) => {
    const text = formatProfileState({ ...state, ...change });
    if (text !== search) nav.setSearch(text);
  };
  const put = (change: Partial<ProfileState>) => { setNow(Date.now()); show(change); };
  const server = useServer();
  server.tenant = state.tenant;
  const span = spanOf(state, now);
  const types = useCall<{ profileTypes?: ProfileType[] }>("ProfileTypes", { start: String(span.start), end: String(span.end) }, `${now}|${state.tenant}`);
  // Lists change slowly: they are loaded again when the range changes, not with every refresh.
  const range = useMemo(() => ({ start: String(span.start), end: String(span.end) }), [state.rangeMS, state.endMS]);
  const services = useCall<{ names?: string[] }>("LabelValues", { name: "service_name", matchers: [], ...range }, state.tenant);
  const known = types.result?.data.profileTypes ?? [];
  const type = state.type || defaultType(known);
  const missing = types.error instanceof APIError && types.error.type === NO_PROFILES;
  const names = services.result?.data.names ?? null;
  const selector = selectorOf(state.service, state.matchers);
  return (
    <div class="query-page profiles">
      <h1 class="unseen">Profiles</h1>
      <div class="toolbar">
        <Controls state={state} types={known} type={type} services={names ?? []} range={range} onChange={put} />
        <span class="spacer" />
        <TimeBar state={state} now={now} onChange={put} onRefresh={() => setNow(Date.now())} />
      </div>
      {missing && <Empty title="This server keeps no profiles">Start <code>ferula serve</code> to keep profiles.</Empty>}
      {types.error && !missing && <Failure error={types.error} onRetry={types.reload} />}
      {!missing && !types.error && types.result && type === "" && (
        <Empty title="No profiles in this range">A server that profiles itself shows its first profiles within a minute.</Empty>
      )}
      {type !== "" && !missing && <>
        <OverTime {...{ state, now, selector }} type={parseType(type)} services={services.error ? [] : names} onChange={put} onShow={show} />
        <FlamePanel {...{ state, now, span, selector }} type={parseType(type)} onChange={put} onShow={show} />
      </>}
    </div>
  );
}

export interface Span { start: number; end: number }

/** Whole seconds, so that lists of names are not loaded again with every refresh of a second. */
function spanOf(s: ProfileState, now: number): Span {
  const end = Math.ceil((s.endMS ?? now) / 1000) * 1000;
  return { start: end - s.rangeMS, end };
}
