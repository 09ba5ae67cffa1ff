// The targets that service discovery found: for each pool those that are kept and those that relabelling dropped, with the labels
// before and after relabelling and, on demand, after each rule.
import "../style/pages.css";
import { useMemo, useState } from "preact/hooks";
import { has, useAPI, useFeatures } from "../api/hooks.ts";
import type { Target, TargetsData } from "../api/types.ts";
import { formatCount } from "../lib/format.ts";
import type { Labels } from "../lib/labels.ts";
import { changesOf, ruleText, type RelabelStep } from "../lib/relabel.ts";
import * as icons from "../parts/icons.tsx";
import { useSearchParam } from "../parts/searchparam.ts";
import { Empty, Failure, Filter, LabelList, Progress, SubNav } from "../parts/small.tsx";

interface Found { pool: string; discovered: Labels; kept: Target | null }

const ROWS_MAX = 100;

const textOf = (l: Labels): string => Object.entries(l).map(([k, v]) => `${k}=${v}`).join(" ").toLowerCase();

export function DiscoveryPage() {
  const { result, error, loading, reload } = useAPI<TargetsData>("targets");
  const [text, setText] = useSearchParam("find");
  const found = useMemo((): Found[] => [
    ...(result?.data.activeTargets ?? []).map((t) => ({ pool: t.scrapePool, discovered: t.discoveredLabels, kept: t })),
    ...(result?.data.droppedTargets ?? []).map((t) => ({ pool: t.scrapePool ?? t.discoveredLabels["job"] ?? "", discovered: t.discoveredLabels, kept: null })),
  ], [result]);
  const pools = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter((w) => w !== "");
    const by = new Map<string, Found[]>();
    for (const f of found) {
      const all = `${f.pool.toLowerCase()} ${textOf(f.discovered)}`;
      if (words.every((w) => all.includes(w))) by.set(f.pool, [...(by.get(f.pool) ?? []), f]);
    }
    return [...by].sort(([a], [b]) => (a < b ? -1 : 1));
  }, [found, text]);
  return (
    <div class="page">
      <div class="page-head">
        <h1>Service discovery</h1>
        <SubNav label="Targets" routes={[["targets", "Targets"], ["service-discovery", "Service discovery"]]} current="service-discovery" />
        <span class="spacer" />
        <Filter value={text} onInput={setText} label="Filter by pool or label" />
      </div>
      <Progress on={loading && !result} />
      {error && <Failure error={error} onRetry={reload} />}
      {pools.map(([name, list]) => <Pool key={name} name={name} list={list} dropped={result?.data.droppedTargetCounts?.[name] ?? 0} />)}
      {result && pools.length === 0 && <Empty title={found.length === 0 ? "Nothing was discovered" : "Nothing matches the filter"} />}
    </div>
  );
}

function Pool({ name, list, dropped }: { name: string; list: readonly Found[]; dropped: number }) {
  const [open, setOpen] = useState(true);
  const kept = list.filter((f) => f.kept).length;
  const steps = has(useFeatures(), "sd");
  return (
    <section class="card pool" aria-label={`Scrape pool ${name}`}>
      <h2>
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}><span class={`turn ${open ? "open" : ""}`}><icons.Right /></span>{name}</button>
        <span class="hint">{formatCount(kept)} kept, {formatCount(Math.max(dropped, list.length - kept))} dropped by relabelling</span>
      </h2>
      {open && (
        <div class="table-scroll"><table class="data discovery">
          <thead><tr><th scope="col">Discovered labels</th><th scope="col">Target labels</th></tr></thead>
          <tbody>{list.slice(0, ROWS_MAX).map((f, i) => (
            <tr key={i}>
              <td><LabelList labels={f.discovered} /></td>
              <td>
                {f.kept ? <LabelList labels={f.kept.labels} /> : <span class="badge unknown">dropped</span>}
                {steps && <Steps pool={name} discovered={f.discovered} />}
              </td>
            </tr>
          ))}</tbody>
        </table></div>
      )}
      {open && list.length > ROWS_MAX && <p class="hint rules-more">The first {ROWS_MAX} of {formatCount(list.length)}; a filter finds the others.</p>}
    </section>
  );
}

/** Which rule has made what of the discovered labels; requested when it is opened. */
function Steps({ pool, discovered }: { pool: string; discovered: Labels }) {
  const [open, setOpen] = useState(false);
  const { result, error, reload } = useAPI<{ steps: RelabelStep[] | null }>(open ? "targets/relabel_steps" : null, { scrapePool: pool, labels: JSON.stringify(discovered) });
  const steps = result?.data.steps ?? [];
  const changes = useMemo(() => changesOf(discovered, steps), [discovered, result]);
  const dropped = steps.findIndex((s) => !s.keep);
  const shown = dropped < 0 ? steps : steps.slice(0, dropped + 1);
  return (
    <div class="relabel">
      <button type="button" class="link" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide the rules" : "Rule by rule"}</button>
      {open && error && <Failure error={error} onRetry={reload} />}
      {open && result && steps.length === 0 && <p class="hint">The pool has no rules.</p>}
      {open && result && (
        <ol>
          {shown.map((s, i) => (
            <li key={i}>
              <pre>{ruleText(s.rule)}</pre>
              {!s.keep && <p><span class="badge down">dropped</span> by this rule</p>}
              {s.keep && changes[i]!.length === 0 && <p class="hint">No change</p>}
              {changes[i]!.length > 0 && (
                <ul>{changes[i]!.map((c) => (
                  <li key={c.name}><code>{c.name}</code>: {c.before === null ? <span class="hint">none</span> : <del>{c.before}</del>} → {c.after === null ? <span class="hint">none</span> : <ins>{c.after}</ins>}</li>
                ))}</ul>
              )}
            </li>
          ))}
        </ol>
      )}
      {open && dropped >= 0 && dropped < steps.length - 1 && <p class="hint">Rules after it are not applied.</p>}
    </div>
  );
}
