// Rules and alerts of the server, or of all stores behind it.
import "../style/pages.css";
import { useMemo, useState } from "preact/hooks";
import { has, useAPI, useAutoRefresh, useFeatures, type Features } from "../api/hooks.ts";
import { formatAgo, formatDuration, formatElapsed } from "../lib/duration.ts";
import { formatCount, plural } from "../lib/format.ts";
import { seriesText } from "../lib/labels.ts";
import { backtestOf, countRules, filterRules, historyOf, type Alert, type Group, type Rule, type RuleState } from "../lib/rules.ts";
import type { Route } from "../lib/route.ts";
import { emptyPanel, emptyState, formatState } from "../lib/urlstate.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
import { useSearchParam } from "../parts/searchparam.ts";
import { Empty, Failure, Filter, LabelList, Progress, Segments, SubNav, Warnings } from "../parts/small.tsx";

/** Pages of the family, without those that the server does not have. */
export const alertRoutes = (features: Features | null): readonly (readonly [Route, string])[] =>
  [["alerts", "Alerts"], ["rules", "Rules"], ["backtest", "Backtest"], ...(has(features, "alertmanagers") ? [["alertmanager-discovery", "Alertmanagers"] as const] : [])];

const REFRESH_MS = 15_000;
const ALERTS_SHOWN = 50;
const RULES_SHOWN = 200;

export function RulesPage({ route }: { route: "rules" | "alerts" }) {
  const [tick, setTick] = useState(0);
  const { result, error, loading, reload } = useAPI<{ groups: Group[] | null }>("rules", route === "alerts" ? { type: "alert" } : {}, tick);
  const [text, setText] = useSearchParam("find");
  const [stateText, setState] = useSearchParam("state");
  const state = (["firing", "pending", "inactive", "bad"] as const).find((s) => s === stateText) ?? "any";
  useAutoRefresh(REFRESH_MS, () => setTick((n) => n + 1));
  const groups = result?.data.groups ?? [];
  const kind = route === "alerts" ? "alerting" : "";
  const counts = useMemo(() => countRules(groups, kind), [groups, kind]);
  const found = useMemo(() => filterRules(groups, text, state, kind), [groups, text, state, kind]);
  const options: readonly (readonly [RuleState, string])[] = [
    ["any", `All ${formatCount(counts.all)}`], ["firing", `Firing ${formatCount(counts.firing)}`], ["pending", `Pending ${formatCount(counts.pending)}`],
    ...(route === "alerts" ? [["inactive", `Inactive ${formatCount(counts.inactive)}`] as const] : []), ["bad", `Failing ${formatCount(counts.bad)}`],
  ];
  return (
    <div class="page">
      <div class="page-head">
        <h1>{route === "alerts" ? "Alerts" : "Rules"}</h1>
        <SubNav label="Alerts and rules" routes={alertRoutes(useFeatures())} current={route} />
        <span class="spacer" />
        <Segments<RuleState> label="State" value={state} options={options} onChange={(s) => setState(s === "any" ? "" : s)} />
        <Filter value={text} onInput={setText} label="Filter by name, query or label" />
        <button type="button" class="button icon-only" aria-label="Refresh now" title="Refresh now" onClick={reload}><icons.Refresh /></button>
      </div>
      <Progress on={loading && !result} />
      {error && <Failure error={error} onRetry={reload} />}
      {result && <Warnings list={result.warnings} />}
      {found.map((g) => <GroupCard key={`${g.file}|${g.name}`} group={g} open={found.length <= 30 || text !== "" || state !== "any"} />)}
      {result && counts.all === 0 && <Empty title={route === "alerts" ? "No alerting rules" : "No rules"}><code>rule_files</code> of the configuration names them.</Empty>}
      {result && counts.all > 0 && found.length === 0 && <Empty title="No rule matches the filter" />}
    </div>
  );
}

function GroupCard({ group, open: byDefault }: { group: Group; open: boolean }) {
  const [chosen, setOpen] = useState<boolean | null>(null);
  const open = chosen ?? byDefault;
  const firing = group.rules.filter((r) => r.state === "firing").length;
  const bad = group.rules.filter((r) => r.health === "err").length;
  return (
    <section class="card pool" aria-label={`Group ${group.name}`}>
      <h2>
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}><span class={`turn ${open ? "open" : ""}`}><icons.Right /></span>{group.name}</button>
        {firing > 0 && <span class="badge down">{firing} firing</span>}
        {bad > 0 && <span class="badge unknown">{bad} failing</span>}
        <span class="hint">{plural(group.rules.length, "rule")} · {group.file} · every {formatDuration(group.interval * 1000)}{group.evaluationTime !== undefined && ` · took ${formatElapsed(group.evaluationTime * 1000)}`}{ago(group.lastEvaluation)}</span>
      </h2>
      {open && <ul class="rules">{group.rules.slice(0, RULES_SHOWN).map((r, i) => <RuleItem key={`${i}${r.name}`} rule={r} />)}</ul>}
      {open && group.rules.length > RULES_SHOWN && <p class="hint rules-more">The first {RULES_SHOWN}; a filter finds the others.</p>}
    </section>
  );
}

/** Go's zero time is "never". */
const ago = (time: string | undefined): string => (time === undefined || time.startsWith("0001-") ? "" : ` · ${formatAgo(Date.now() - Date.parse(time))}`);

const BADGES: Readonly<Record<string, string>> = { firing: "down", pending: "unknown", inactive: "up" };

function RuleItem({ rule: r }: { rule: Rule }) {
  const nav = useNav();
  const [all, setAll] = useState(false);
  const alerts = r.alerts ?? [];
  const run = (expr: string) => nav.go("query", formatState({ ...emptyState(), panels: [{ ...emptyPanel(), expr }] }));
  return (
    <li class="rule">
      <div class="rule-head">
        {r.state !== undefined && <span class={`badge ${BADGES[r.state] ?? "unknown"}`}>{r.state}</span>}
        {r.health === "err" && <span class="badge down">failing</span>}
        <b>{r.name}</b>
        {r.duration !== undefined && r.duration > 0 && <span class="hint">for {formatDuration(r.duration * 1000)}</span>}
        {r.keepFiringFor !== undefined && r.keepFiringFor > 0 && <span class="hint">keeps firing for {formatDuration(r.keepFiringFor * 1000)}</span>}
        <span class="spacer" />
        {r.type === "alerting" && <button type="button" class="link" onClick={() => run(historyOf(r.name))}>History</button>}
        {r.type === "alerting" && <button type="button" class="link" title="What it would have done over the last day" onClick={() => nav.go("backtest", backtestOf(r))}>Backtest</button>}
        <span class="hint">{r.evaluationTime !== undefined && formatElapsed(r.evaluationTime * 1000)}{ago(r.lastEvaluation)}</span>
      </div>
      <button type="button" class="rule-query" title="Run this query" onClick={() => run(r.query)}><code>{r.query}</code></button>
      {r.lastError && <p class="target-error">{r.lastError}</p>}
      {r.labels && Object.keys(r.labels).length > 0 && <LabelList labels={r.labels} />}
      {r.annotations && Object.keys(r.annotations).length > 0 && <Annotations of={r.annotations} />}
      {alerts.length > 0 && (
        <table class="data alerts"><thead><tr><th scope="col">Labels</th><th scope="col">State</th><th scope="col">Active since</th><th scope="col" class="num">Value</th></tr></thead>
          <tbody>{(all ? alerts : alerts.slice(0, ALERTS_SHOWN)).map((a) => <AlertRow key={seriesText(a.labels)} alert={a} />)}</tbody>
        </table>
      )}
      {!all && alerts.length > ALERTS_SHOWN && <button type="button" class="link" onClick={() => setAll(true)}>Show all {formatCount(alerts.length)}</button>}
    </li>
  );
}

function AlertRow({ alert: a }: { alert: Alert }) {
  return (
    <tr>
      <td><LabelList labels={a.labels} />{Object.keys(a.annotations ?? {}).length > 0 && <Annotations of={a.annotations} />}</td>
      <td><span class={`badge ${BADGES[a.state] ?? "unknown"}`}>{a.state}</span></td>
      <td>{a.activeAt ? <span title={a.activeAt}>{formatAgo(Date.now() - Date.parse(a.activeAt))}</span> : "–"}</td>
      <td class="num">{a.value}</td>
    </tr>
  );
}

const Annotations = ({ of }: { of: Readonly<Record<string, string>> }) =>
  <dl class="annotations">{Object.entries(of).map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl>;
