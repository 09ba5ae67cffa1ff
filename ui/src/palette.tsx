// The command palette: one box finds pages, metrics, labels, services, profile types and functions of profiles.
import "./style/explorer.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { has, useAPI, useCall, useFeatures } from "./api/hooks.ts";
import { suggestExpr } from "./lib/examples.ts";
import { readHistory } from "./lib/history.ts";
import { rankItems, type Item } from "./lib/palette.ts";
import { formatProfileState, parseProfileState } from "./lib/profilestate.ts";
import { decodeFunctions, type WireFunctions } from "./lib/flame.ts";
import { defaultType, parseType, typeName, type ProfileType } from "./lib/profiles.ts";
import type { Route } from "./lib/route.ts";
import { emptyPanel, formatState, parseState } from "./lib/urlstate.ts";
import { useNav } from "./nav.ts";
import { Empty } from "./parts/small.tsx";
import { store } from "./store.ts";

const SHOWN_MAX = 60;
const LOOK_BACK_S = 6 * 3600;
const NAMES_MAX = 50_000;
/** The palette finds functions of the default profile type in the last hour. */
const FUNCTIONS_MAX = 5000;
const FUNCTIONS_BACK_S = 3600;

const PAGES: readonly (readonly [Route, string, string])[] = [
  ["query", "Query", "query"], ["profiles", "Profiles", "profiles"], ["alerts", "Alerts", "alerts"], ["rules", "Rules", "rules"], ["alertmanager-discovery", "Alertmanagers", "alertmanagers"], ["blocks", "Blocks", "blocks"], ["targets", "Targets", "targets"],
  ["service-discovery", "Service discovery", "sd"], ["status", "Server status", ""], ["tsdb-status", "TSDB status", "tsdb"], ["flags", "Flags", "flags"], ["config", "Configuration", "config"], ["stores", "Stores", "stores"], ["queries", "Running queries", "queries"],
];

interface Names { names?: string[] }

export function Palette({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const items = useItems(onClose);
  const found = useMemo(() => rankItems(items, text).slice(0, SHOWN_MAX), [items, text]);
  useEffect(() => { dialog.current?.showModal(); }, []);
  useEffect(() => setAt(0), [text]);
  useEffect(() => { dialog.current?.querySelector(`#palette-${at}`)?.scrollIntoView({ block: "nearest" }); }, [at]);
  const key = (e: KeyboardEvent) => {
    if (e.key === "ArrowDown") setAt((i) => Math.min(found.length - 1, i + 1));
    else if (e.key === "ArrowUp") setAt((i) => Math.max(0, i - 1));
    else if (e.key === "Enter") found[at]?.run();
    else return;
    e.preventDefault();
  };
  return (
    <dialog class="explorer palette" ref={dialog} aria-label="Find" onClose={onClose} onClick={(e) => { if (e.target === dialog.current) onClose(); }}>
      <div class="explorer-body">
        <input type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={found.length > 0 ? `palette-${at}` : undefined} aria-label="Find metrics, labels, functions, services, pages"
          placeholder="Metrics, labels, functions, services, pages, past queries" value={text} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} onKeyDown={key} />
        <ul id="palette-list" role="listbox" aria-label="Found">
          {found.map((item, i) => (
            <li key={`${item.kind}|${item.text}`} id={`palette-${i}`} role="option" aria-selected={i === at} onMouseMove={() => setAt(i)} onClick={() => item.run()}>
              <span class="palette-text">{item.text}</span><span class="type">{item.kind}</span>
            </li>
          ))}
        </ul>
        {found.length === 0 && <Empty title="Nothing found" />}
      </div>
    </dialog>
  );
}

function useItems(close: () => void): Item[] {
  const nav = useNav();
  const features = useFeatures();
  const [now] = useState(() => Math.floor(Date.now() / 1000));
  const metrics = useAPI<string[]>("label/__name__/values", { start: now - LOOK_BACK_S, limit: NAMES_MAX });
  const labels = useAPI<string[]>("labels", { start: now - LOOK_BACK_S, limit: NAMES_MAX });
  const profiles = features?.["profiles"] === true;
  const range = { start: String((now - LOOK_BACK_S) * 1000), end: String(now * 1000) };
  const services = useCall<Names>(profiles ? "LabelValues" : null, { name: "service_name", matchers: [], ...range });
  const types = useCall<{ profileTypes?: ProfileType[] }>(profiles ? "ProfileTypes" : null, range);
  const cpu = defaultType(types.result?.data.profileTypes ?? []);
  const functions = useCall<WireFunctions>(cpu === "" ? null : "SelectFunctions",
    { profileTypeID: cpu, labelSelector: "{}", start: String((now - FUNCTIONS_BACK_S) * 1000), end: range.end, maxNodes: String(FUNCTIONS_MAX) });
  return useMemo(() => {
    const go = (route: Route, search = "") => () => { close(); nav.go(route, search); };
    // The time range of the page stays; the query becomes that of the first panel.
    const query = (expr: string) => go("query", formatState({ ...parseState(nav.place.route === "query" ? nav.place.search : ""), panels: [{ ...emptyPanel(), expr }] }));
    const profile = parseProfileState(nav.place.route === "profiles" ? nav.place.search : "");
    const toProfiles = (c: object) => go("profiles", formatProfileState({ ...profile, profile: null, base: null, ...c }));
    return [
      ...PAGES.filter(([, , need]) => need === "" || has(features, need)).map(([route, name]): Item => ({ kind: "page", text: name, run: go(route) })),
      ...(services.result?.data.names ?? []).map((name): Item => ({ kind: "service", text: name, run: toProfiles({ service: name }) })),
      ...(types.result?.data.profileTypes ?? []).map((t): Item => ({ kind: "profile type", text: typeName(parseType(t.ID)), run: toProfiles({ type: t.ID }) })),
      ...(functions.result ? decodeFunctions(functions.result.data).costs : []).map(({ name }): Item => ({ kind: "function", text: name, run: toProfiles({ type: cpu, sandwich: name }) })),
      ...(metrics.result?.data ?? []).map((name): Item => ({ kind: "metric", text: name, run: query(suggestExpr(name, "", "5m")) })),
      ...(labels.result?.data ?? []).filter((n) => n !== "__name__").map((name): Item => ({ kind: "label", text: name, run: query(`count by (${/^[a-zA-Z_]\w*$/.test(name) ? name : JSON.stringify(name)}) ({${/^[a-zA-Z_]\w*$/.test(name) ? name : JSON.stringify(name)}!=""})`) })),
      ...readHistory(store).map((expr): Item => ({ kind: "past query", text: expr, run: query(expr) })),
    ];
  }, [metrics.result, labels.result, services.result, types.result, functions.result, features]);
}
