// The bar with the parameters of a querier of many stores, and the tenant. It is shown if the server has stores, or if the
// address selects some.
import "../style/stores.css";
import { useState } from "preact/hooks";
import { useAPI, useFeatures } from "../api/hooks.ts";
import { choosesStores, type QueryState, type StoreChoice } from "../lib/urlstate.ts";
import * as icons from "../parts/icons.tsx";
import { Popover } from "../parts/popover.tsx";

interface Props { state: QueryState; onChange: (c: Partial<Pick<QueryState, "stores" | "tenant">>) => void }

const RESOLUTIONS: readonly (readonly [string, string])[] = [["", "server default"], ["0s", "raw"], ["5m", "5 minutes"], ["1h", "1 hour"], ["auto", "from the step"]];

export function StoreBar({ state, onChange }: Props) {
  const features = useFeatures();
  const stores = features?.["stores"] === true;
  const put = (c: Partial<StoreChoice>) => onChange({ stores: { ...state.stores, ...c } });
  return (
    <div class="storebar" role="group" aria-label="Stores">
      <label class="check"><input type="checkbox" checked={state.stores.dedup !== "0"} onChange={(e) => put({ dedup: e.currentTarget.checked ? "" : "0" })} />Deduplicate</label>
      <Popover label="Stores and resolution" buttonClass={`button ${choosesStores(state) ? "set" : ""}`} button={<>Stores<icons.Down /></>}>
        {() => <StoreForm state={state} stores={stores} put={put} onChange={onChange} />}
      </Popover>
    </div>
  );
}

interface FormProps extends Props { stores: boolean; put: (c: Partial<StoreChoice>) => void }

function StoreForm({ state, stores, put, onChange }: FormProps) {
  const { partial, resolution, match } = state.stores;
  return (
    <div class="store-form">
      <label class="field"><span>Partial response</span>
        <select class="button" value={partial} onChange={(e) => put({ partial: e.currentTarget.value as StoreChoice["partial"] })}>
          <option value="">server default</option><option value="1">allow</option><option value="0">fail the query</option>
        </select></label>
      <label class="field"><span>Max source resolution</span>
        <select class="button" value={resolution} onChange={(e) => put({ resolution: e.currentTarget.value })}>
          {RESOLUTIONS.some(([v]) => v === resolution) ? null : <option value={resolution}>{resolution}</option>}
          {RESOLUTIONS.map(([v, text]) => <option key={v} value={v}>{text}</option>)}
        </select></label>
      <TenantField value={state.tenant} onChange={(tenant) => onChange({ tenant })} />
      {stores && <StoreList match={match} onChange={(next) => put({ match: next })} />}
    </div>
  );
}

export function TenantField({ value, onChange }: { value: string; onChange: (v: string) => void }) {
  return (
    <label class="field"><span>Tenant</span>
      <input type="text" defaultValue={value} placeholder="none" spellcheck={false} onChange={(e) => onChange(e.currentTarget.value.trim())} />
    </label>
  );
}

interface Store { name: string; lastError: string | null }

const addressOf = (match: string): string | null => /^\{__address__="((?:[^"\\]|\\.)*)"\}$/.exec(match)?.[1]?.replace(/\\(.)/g, "$1") ?? null;

/** The stores to read, by address; none chosen reads all. Other matchers are typed. */
function StoreList({ match, onChange }: { match: readonly string[]; onChange: (m: string[]) => void }) {
  const { result } = useAPI<Record<string, Store[] | null>>("stores");
  const [text, setText] = useState("");
  const all = Object.values(result?.data ?? {}).flatMap((l) => l ?? []);
  const names = [...new Set([...all.map((s) => s.name), ...match.map(addressOf).filter((n): n is string => n !== null)])].sort();
  const other = match.filter((m) => addressOf(m) === null);
  const of = (name: string) => `{__address__="${name.replace(/[\\"]/g, "\\$&")}"}`;
  return (
    <fieldset class="store-list">
      <legend>Only these stores</legend>
      {names.map((n) => (
        <label class="check" key={n}><input type="checkbox" checked={match.includes(of(n))} onChange={(e) => onChange(e.currentTarget.checked ? [...match, of(n)] : match.filter((m) => m !== of(n)))} />
          {n}{all.find((s) => s.name === n)?.lastError && <span class="badge down">down</span>}</label>
      ))}
      {other.map((m) => <label class="check" key={m}><input type="checkbox" checked onChange={() => onChange(match.filter((x) => x !== m))} /><code>{m}</code></label>)}
      <form onSubmit={(e) => { e.preventDefault(); if (text.trim() !== "") { onChange([...match, text.trim()]); setText(""); } }}>
        <input type="text" aria-label="Matcher of stores" placeholder={'{region="eu"}'} value={text} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} />
      </form>
    </fieldset>
  );
}
