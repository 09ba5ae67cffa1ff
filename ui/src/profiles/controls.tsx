// The controls of the profiles page: profile type, service, label to split by.
import { useMemo, useState } from "preact/hooks";
import { useCall } from "../api/hooks.ts";
import * as icons from "../parts/icons.tsx";
import { Popover } from "../parts/popover.tsx";
import { Filter } from "../parts/small.tsx";
import { TenantField } from "../query/storebar.tsx";
import { escapeValue } from "../lib/labels.ts";
import { completing, parseType, selectorOf, typeName, withMatcher, type ProfileType } from "../lib/profiles.ts";
import { elsewhere, type ProfileState } from "../lib/profilestate.ts";

interface Props {
  state: ProfileState;
  types: readonly ProfileType[];
  /** The type that is shown, chosen by the page where the address names none. */
  type: string;
  services: readonly string[];
  /** Of the lists of names, in ms. */
  range: { start: string; end: string };
  onChange: (c: Partial<ProfileState>) => void;
}

interface Names { names?: string[] }

export function Controls({ state, types, type, services, range, onChange }: Props) {
  const labels = useCall<Names>("LabelNames", { matchers: [selectorOf(state.service, "")], ...range });
  const typeIDs = types.map((t) => t.ID);
  const shown = type !== "" && !typeIDs.includes(type) ? [parseType(type), ...types] : types;
  const ordered = [...shown].sort((a, b) => (typeName(a) < typeName(b) ? -1 : 1));
  const serviceNames = withCurrent(services, state.service);
  const groups = withCurrent((labels.result?.data.names ?? []).filter((n) => !n.startsWith("__")), state.groupBy);
  return (
    <div class="profile-controls" role="group" aria-label="Profiles">
      <select class="button" aria-label="Profile type" id="profile-type" value={type} onChange={(e) => onChange({ type: e.currentTarget.value, ...elsewhere })}>
        {ordered.map((t) => <option key={t.ID} value={t.ID} title={t.ID}>{typeName(t)}</option>)}
      </select>
      <select class="button" aria-label="Service" value={state.service} onChange={(e) => onChange({ service: e.currentTarget.value, ...elsewhere, ...(e.currentTarget.value !== "" && state.over === "services" ? { over: "" as const } : {}) })}>
        <option value="">All services</option>
        {serviceNames.map((n) => <option key={n} value={n}>{n}</option>)}
      </select>
      <Matchers value={state.matchers} names={groups} state={state} range={range} onChange={(matchers) => onChange({ matchers, ...elsewhere })} />
      <Popover label="Labels of the profiles" buttonClass="button" button={<>Labels<icons.Down /></>}>
        {() => <LabelBrowser names={groups} state={state} range={range} onChange={onChange} />}
      </Popover>
      <select class="button" aria-label="Split by" value={state.groupBy} onChange={(e) => onChange({ groupBy: e.currentTarget.value })}>
        <option value="">Group by: none</option>
        {groups.map((n) => <option key={n} value={n}>by {n}</option>)}
      </select>
    </div>
  );
}

/** Labels and their values: each included, excluded or split by with a click. */
function LabelBrowser({ names, state, range, onChange }: { names: readonly string[]; state: ProfileState; range: { start: string; end: string }; onChange: Props["onChange"] }) {
  const [name, setName] = useState("");
  const [filter, setFilter] = useState("");
  const values = useCall<Names>(name === "" ? null : "LabelValues", { name, matchers: [selectorOf(state.service, state.matchers)], ...range });
  const put = (op: "=" | "!=", value: string) => onChange({ matchers: withMatcher(state.matchers, name, op, value), ...elsewhere });
  const all = (values.result?.data.names ?? []).filter((v) => v.toLowerCase().includes(filter.toLowerCase()));
  return (
    <div class="label-browser">
      <div class="label-names" role="group" aria-label="Names">{names.map((n) => <button type="button" class="chip" key={n} aria-pressed={n === name} onClick={() => { setName(n); setFilter(""); }}>{n}</button>)}</div>
      {name !== "" && <>
        <div class="label-head"><b>{name}</b><button type="button" class="link" onClick={() => onChange({ groupBy: name })}>Group by it</button></div>
        <Filter value={filter} onInput={setFilter} label="Find values" />
        <ul tabIndex={0} aria-label="Values">{all.slice(0, VALUES_MAX).map((v) => (
          <li key={v}><code>{v}</code><span><button type="button" class="link" onClick={() => put("=", v)}>only</button><button type="button" class="link" onClick={() => put("!=", v)}>without</button></span></li>
        ))}</ul>
        {all.length > VALUES_MAX && <p class="hint">{VALUES_MAX} of {all.length}; type to find others.</p>}
      </>}
      <TenantField value={state.tenant} onChange={(tenant) => onChange({ tenant })} />
    </div>
  );
}

const VALUES_MAX = 100;

/** A choice made in the address stays choosable when the range no longer has it. */
const withCurrent = (names: readonly string[], current: string): string[] =>
  current === "" || names.includes(current) ? [...names] : [current, ...names];

interface MatchersProps { value: string; names: readonly string[]; state: ProfileState; range: { start: string; end: string }; onChange: (v: string) => void }

/** Names and values are completed, one matcher after the other. */
function Matchers({ value, names, state, range, onChange }: MatchersProps) {
  const [text, setText] = useState<string | null>(null);
  const apply = (v: string) => { setText(null); if (v.trim() !== value) onChange(v.trim()); };
  const at = useMemo(() => completing(text ?? ""), [text]);
  const values = useCall<Names>(text !== null && at.name !== "" ? "LabelValues" : null, { name: at.name, matchers: [selectorOf(state.service, "")], ...range });
  const options = text === null ? [] : at.name === "" ? names.map((n) => `${at.head}${n}="`) : (values.result?.data.names ?? []).slice(0, VALUES_MAX).map((v) => `${at.head}${at.name}${at.op}"${escapeValue(v)}"`);
  return (
    <>
      <input type="text" class="matchers" list="matcher-options" aria-label="Label matchers" title="Further matchers, as in PromQL: pod=~&quot;web-.*&quot;" placeholder={'label="value", …'}
        spellcheck={false} autocomplete="off" value={text ?? value} onFocus={() => setText((t) => t ?? value)} onBlur={() => setText((t) => (t === value ? null : t))} onInput={(e) => setText(e.currentTarget.value)}
        onChange={(e) => apply(e.currentTarget.value)} onKeyDown={(e) => { if (e.key === "Enter") apply(e.currentTarget.value); }} />
      <datalist id="matcher-options">{options.map((o) => <option key={o} value={o} />)}</datalist>
    </>
  );
}
