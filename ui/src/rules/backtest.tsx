// Rules on history: what an alert would have done, over the graph of its expression. All of it is in the address.
import "../style/backtest.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAPI, useAutoRefresh, useFeatures, useQueryAPI } from "../api/hooks.ts";
import type { Params } from "../api/client.ts";
import { drawnExpr, ruleFile, shareOf, spansOf, spelled, thresholdOf, type Backtest, type Notification, type TestedRule } from "../lib/backtest.ts";
import { formatDuration, parseDuration } from "../lib/duration.ts";
import { formatCount, plural } from "../lib/format.ts";
import { seriesText } from "../lib/labels.ts";
import { matrixColumns } from "../lib/matrix.ts";
import type { Group, Rule } from "../lib/rules.ts";
import { autoStep, grid, type Grid } from "../lib/step.ts";
import { formatTime, parseTime } from "../lib/time.ts";
import { useNav } from "../nav.ts";
import * as icons from "../parts/icons.tsx";
import { Empty, Failure, LabelList, Progress, SubNav, Warnings } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { Chart } from "../query/chart.tsx";
import { TimeBar, zoomOut } from "../query/timebar.tsx";
import { alertRoutes } from "./page.tsx";

const DAY_MS = 86_400_000;
const SERIES_MAX = 100;
const ALERTS_SHOWN = 50;
const SENT_SHOWN = 20;

/** The fields of the address. `rule` names a rule of the server, whose labels and annotations are used. */
interface State { text: string; hold: string; keep: string; rule: string; rangeMS: number; endMS: number | null; stepMS: number | null; refreshMS: number }

function parse(search: string): State {
  const q = new URLSearchParams(search);
  const end = q.get("end");
  return {
    text: q.get("rules") ?? q.get("expr") ?? "", hold: q.get("for") ?? "", keep: q.get("keep") ?? "", rule: q.get("rule") ?? "",
    rangeMS: parseDuration(q.get("range") ?? "") || DAY_MS, endMS: end === null ? null : parseTime(end, "utc", Date.now()), stepMS: parseDuration(q.get("step") ?? ""), refreshMS: parseDuration(q.get("refresh") ?? "") ?? 0,
  };
}

function format(s: State): string {
  const q = new URLSearchParams();
  const put = (name: string, value: string) => { if (value !== "") q.set(name, value); };
  put(ruleFile(s.text) === null ? "expr" : "rules", s.text);
  put("for", s.hold);
  put("keep", s.keep);
  put("rule", s.rule);
  if (s.rangeMS !== DAY_MS) put("range", formatDuration(s.rangeMS));
  if (s.endMS !== null) put("end", new Date(s.endMS).toISOString());
  if (s.stepMS !== null) put("step", formatDuration(s.stepMS));
  if (s.refreshMS > 0) put("refresh", formatDuration(s.refreshMS));
  return `?${q}`;
}

export function BacktestPage() {
  const nav = useNav();
  const state = useMemo(() => parse(nav.place.search), [nav.place.search]);
  const [now, setNow] = useState(Date.now);
  const put = (change: Partial<State>) => { setNow(Date.now()); nav.setSearch(format({ ...state, ...change }), true); };
  // Only a range that ends now has new data after a refresh.
  useAutoRefresh(state.endMS === null ? state.refreshMS : 0, () => setNow(Date.now()));
  const known = useAPI<{ groups: Group[] | null }>("rules", { type: "alert" });
  const rules = useMemo(() => (known.result?.data.groups ?? []).flatMap((g) => g.rules), [known.result]);
  const picked = rules.find((r) => r.name === state.rule);
  const file = ruleFile(state.text);
  const endMS = state.endMS ?? now;
  const params: Params = {
    start: (endMS - state.rangeMS) / 1000, end: endMS / 1000,
    ...(file === null ? { expr: state.text, for: state.hold || undefined, keep_firing_for: state.keep || undefined, ...named(picked, state.rule) } : { rules: file }),
    ...(state.stepMS === null ? {} : { interval: `${state.stepMS}ms` }),
  };
  // A rule's labels and annotations are part of the request: it waits until the rules are known.
  const ready = state.text.trim() !== "" && (state.rule === "" || known.result !== null || known.error !== null);
  const { result, error, loading, reload } = useAPI<Backtest>(ready ? "rules/backtest" : null, params);
  const tested = ready ? result : null;
  return (
    <div class="page">
      <div class="page-head">
        <h1>Backtest</h1>
        <SubNav label="Alerts and rules" routes={alertRoutes(useFeatures())} current="backtest" />
        <span class="spacer" />
        <TimeBar state={state} now={now} onRefresh={() => setNow(Date.now())} onChange={put} />
      </div>
      <Form key={nav.place.search} state={state} rules={rules} single={file === null} onChange={put} />
      <Progress on={loading} />
      {error && <Failure error={error} onRetry={reload} />}
      {tested && <Warnings list={tested.warnings} />}
      {!ready && <Empty title="Which alerts would have fired?">Type an expression, paste a rule or a rule file, or pick a rule of this server.</Empty>}
      {tested && !error && <Result data={tested.data} expr={file === null ? state.text : null} now={now}
        onZoom={(from, to) => put({ rangeMS: to - from, endMS: to, refreshMS: 0 })} onZoomOut={() => put(zoomOut(state, now))} />}
    </div>
  );
}

const pairs = (of: Readonly<Record<string, string>> | null | undefined): string[] => Object.entries(of ?? {}).map(([k, v]) => `${k}=${v}`);

const named = (rule: Rule | undefined, name: string): Params =>
  (name === "" ? {} : { alert: name, label: pairs(rule?.labels), annotation: pairs(rule?.annotations) });

function Form({ state, rules, single, onChange }: { state: State; rules: readonly Rule[]; single: boolean; onChange: (c: Partial<State>) => void }) {
  const text = useRef<HTMLTextAreaElement>(null);
  const run = () => onChange({ text: text.current!.value });
  const pick = (name: string) => {
    const r = rules.find((one) => one.name === name);
    if (r) onChange({ text: r.query, hold: spelled(r.duration), keep: spelled(r.keepFiringFor), rule: name });
  };
  return (
    <form class="card backtest-form" onSubmit={(e) => { e.preventDefault(); run(); }}>
      <textarea ref={text} aria-label="Expression or rules" placeholder="An expression, or rules in YAML" spellcheck={false} rows={Math.min(Math.max(state.text.split("\n").length, 2), 14)} defaultValue={state.text}
        onKeyDown={(e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey || (single && !e.shiftKey && ruleFile(e.currentTarget.value) === null))) { e.preventDefault(); run(); } }} />
      <div class="backtest-fields">
        {single && <Hold label="For" value={state.hold} onChange={(hold) => onChange({ text: text.current!.value, hold })} />}
        {single && <Hold label="Keep firing for" value={state.keep} onChange={(keep) => onChange({ text: text.current!.value, keep })} />}
        {single && <Limit expr={state.text} onChange={(next) => onChange({ text: next })} />}
        <span class="spacer" />
        {rules.length > 0 && (
          <select class="button" aria-label="Pick a rule" value={state.rule} onChange={(e) => pick(e.currentTarget.value)}>
            <option value="">Pick a rule</option>
            {[...new Set(rules.map((r) => r.name))].map((name) => <option key={name} value={name}>{name}</option>)}
          </select>
        )}
        <button type="submit" class="button primary"><icons.Play />Run</button>
      </div>
    </form>
  );
}

function Hold({ label, value, onChange }: { label: string; value: string; onChange: (v: string) => void }) {
  const [bad, setBad] = useState(false);
  const apply = (text: string) => {
    const wrong = text.trim() !== "" && parseDuration(text) === null;
    setBad(wrong);
    if (!wrong && text.trim() !== value) onChange(text.trim());
  };
  return (
    <label class="step"><span>{label}</span>
      <input type="text" defaultValue={value} placeholder="0s" aria-label={label} aria-invalid={bad} spellcheck={false} onChange={(e) => apply(e.currentTarget.value)}
        onKeyDown={(e) => { if (e.key === "Enter") { e.preventDefault(); apply(e.currentTarget.value); } }} />
    </label>
  );
}

/** The number that the expression ends with, as a box and as a slider from nothing to twice as much. */
function Limit({ expr, onChange }: { expr: string; onChange: (expr: string) => void }) {
  const t = thresholdOf(expr);
  if (!t) return null;
  const top = t.value === 0 ? 1 : 2 * t.value;
  const set = (text: string) => { if (text.trim() !== "" && Number.isFinite(Number(text))) onChange(t.before + Number(text)); };
  return (
    <label class="step backtest-limit"><span>Threshold</span>
      <input type="text" inputMode="decimal" aria-label="Threshold" defaultValue={String(t.value)} onChange={(e) => set(e.currentTarget.value)} />
      <input type="range" aria-label="Move the threshold" min={Math.min(0, top)} max={Math.max(0, top)} step={Math.abs(top) / 200} defaultValue={String(t.value)}
        onChange={(e) => set(String(Number(Number(e.currentTarget.value).toPrecision(4))))} />
    </label>
  );
}

interface ResultProps { data: Backtest; expr: string | null; now: number; onZoom: (fromMS: number, toMS: number) => void; onZoomOut: () => void }

function Result({ data, expr, now, onZoom, onZoomOut }: ResultProps) {
  const tested = data.groups.flatMap((g) => g.rules.map((rule) => ({ rule, stepMS: g.interval * 1000 })));
  const pages = tested.reduce((n, { rule }) => n + (rule.counts.firings ?? 0), 0);
  const sent = tested.reduce((n, { rule }) => n + (rule.counts.notifications ?? 0), 0);
  const first = tested[0];
  return (
    <>
      <section class="card head" aria-label="Summary">
        <div class="figure"><span>Fired</span><b data-pages={pages}>{plural(pages, "time")}</b></div>
        <div class="figure"><span>Notifications</span><b>{formatCount(sent)}</b></div>
        <div class="figure"><span>Alerts</span><b>{formatCount(tested.reduce((n, { rule }) => n + (rule.counts.alerts ?? 0), 0))}</b></div>
      </section>
      {expr !== null && first && <Graph expr={expr} data={data} rule={first.rule} stepMS={first.stepMS} now={now} onZoom={onZoom} onZoomOut={onZoomOut} />}
      {tested.map(({ rule }, i) => <RuleCard key={`${i}${rule.name}`} rule={rule} data={data} />)}
    </>
  );
}

/** The graph of the expression, shaded where any alert was pending or firing. */
function Graph({ expr, data, rule, stepMS, onZoom, onZoomOut }: ResultProps & { expr: string; rule: TestedRule; stepMS: number }) {
  const host = useRef<HTMLElement>(null);
  const [startMS, endMS] = [data.start * 1000, data.end * 1000];
  const g: Grid = useMemo(() => grid(endMS, endMS - startMS, Math.max(autoStep(endMS - startMS, 900), stepMS)), [startMS, endMS, stepMS]);
  const drawn = useQueryAPI("query_range", { query: drawnExpr(expr), start: g.start / 1000, end: g.end / 1000, step: g.step / 1000 }, 0);
  const range = drawn.result?.data.resultType === "range" && drawn.requested["start"] === g.start / 1000 && drawn.requested["step"] === g.step / 1000 ? drawn.result.data.matrix : null;
  const columns = useMemo(() => (range ? matrixColumns(range, g, SERIES_MAX) : null), [range, g]);
  useEffect(() => {
    const over = host.current?.querySelector(".u-over");
    if (!over) return undefined;
    const bands = (["pending", "firing"] as const).flatMap((state) => spansOf(rule.alerts ?? [], state, stepMS).map(([from, to]) => {
      const band = document.createElement("div");
      band.className = `band ${state}`;
      Object.assign(band.style, shareOf(from, to, g.start, g.end));
      return band;
    }));
    over.prepend(...bands);
    return () => bands.forEach((b) => b.remove());
  }, [columns, rule, g]);
  return (
    <section class="card backtest-graph" aria-label="Graph" ref={host}>
      {drawn.error && <Failure error={drawn.error} onRetry={drawn.reload} />}
      {columns && columns.values.length > 0 && <Chart columns={columns} grid={g} stacked={false} onZoom={onZoom} onZoomOut={onZoomOut} />}
      {columns && columns.values.length === 0 && <Empty title="No data in this range" />}
    </section>
  );
}

function RuleCard({ rule, data }: { rule: TestedRule; data: Backtest }) {
  const [all, setAll] = useState(false);
  const alerts = rule.alerts ?? [];
  const sent = rule.notifications ?? [];
  return (
    <section class="card pool" aria-label={`Rule ${rule.name}`}>
      <h2>{rule.name}
        {rule.type === "alerting"
          ? <span class={`badge ${rule.counts.firings ? "down" : "up"}`}>fired {plural(rule.counts.firings ?? 0, "time")}</span>
          : <span class="hint">{plural(rule.counts.samples ?? 0, "sample")} recorded</span>}
        {rule.for ? <span class="hint">for {spelled(rule.for)}</span> : null}
        {rule.keepFiringFor ? <span class="hint">keeps firing for {spelled(rule.keepFiringFor)}</span> : null}
      </h2>
      {rule.errors && <p class="target-error">{plural(rule.errors.count, "evaluation")} failed: {rule.errors.first}</p>}
      {rule.truncated && <p class="hint rules-more">Not everything is listed: the counts are complete.</p>}
      {alerts.length > 0 && (
        <ul class="lanes">
          {(all ? alerts : alerts.slice(0, ALERTS_SHOWN)).map((a) => (
            <li key={seriesText(a.labels)}>
              <LabelList labels={a.labels} />
              <div class="lane">{a.intervals.map((i) => <span key={`${i.state}${i.start}`} class={i.state} style={shareOf(i.start, i.end, data.start, data.end)} title={`${i.state} for ${formatDuration((i.end - i.start) * 1000)}${i.open ? " and on" : ""}, value ${i.value}`} />)}</div>
            </li>
          ))}
        </ul>
      )}
      {!all && alerts.length > ALERTS_SHOWN && <button type="button" class="link rules-more" onClick={() => setAll(true)}>Show all {formatCount(alerts.length)}</button>}
      {sent.length > 0 && <Sent list={sent} />}
    </section>
  );
}

function Sent({ list }: { list: readonly Notification[] }) {
  const { zone } = usePrefs();
  const [all, setAll] = useState(false);
  return (
    <div class="table-scroll">
      <table class="data alerts"><thead><tr><th scope="col">Sent</th><th scope="col">State</th><th scope="col">Notification</th><th scope="col" class="num">Repeated</th></tr></thead>
        <tbody>{(all ? list : list.slice(0, SENT_SHOWN)).map((n) => (
          <tr key={`${n.at}${n.resolved}${seriesText(n.labels)}`}>
            <td>{formatTime(n.at * 1000, zone)}</td>
            <td><span class={`badge ${n.resolved ? "up" : "down"}`}>{n.resolved ? "resolved" : "firing"}</span></td>
            <td><LabelList labels={n.labels} /><dl class="annotations">{Object.entries(n.annotations).map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl></td>
            <td class="num">{formatCount(n.resends)}</td>
          </tr>
        ))}</tbody>
      </table>
      {!all && list.length > SENT_SHOWN && <button type="button" class="link rules-more" onClick={() => setAll(true)}>Show all {formatCount(list.length)}</button>}
    </div>
  );
}
