// The targets page: scrape targets and their health.
import "../style/pages.css";
import { useMemo, useState } from "preact/hooks";
import { has, useAPI, useAutoRefresh, useFeatures } from "../api/hooks.ts";
import type { Target, TargetsData } from "../api/types.ts";
import { formatAgo, formatElapsed } from "../lib/duration.ts";
import { formatCount, plural } from "../lib/format.ts";
import { countHealth, filterTargets, groupTargets, type HealthFilter, type PoolOf } from "../lib/targets.ts";
import { useSearchParam } from "../parts/searchparam.ts";
import * as icons from "../parts/icons.tsx";
import { Empty, Failure, Filter, LabelList, Progress, Segments, SubNav } from "../parts/small.tsx";

const REFRESH_MS = 10_000;

export function TargetsPage() {
  const [tick, setTick] = useState(0);
  const { result, error, loading, reload } = useAPI<TargetsData>("targets", {}, tick);
  const [text, setText] = useSearchParam("find");
  const [healthText, setHealthText] = useSearchParam("health");
  const health = (["up", "down", "unknown"] as const).find((h) => h === healthText) ?? "any";
  const setHealth = (h: HealthFilter) => setHealthText(h === "any" ? "" : h);
  const features = useFeatures();
  useAutoRefresh(REFRESH_MS, () => setTick((n) => n + 1));
  const all = result?.data.activeTargets ?? [];
  const counts = useMemo(() => countHealth(all), [result]);
  const pools = useMemo(() => groupTargets(filterTargets(all, text, health), result?.data ?? null), [result, text, health]);
  const options: readonly (readonly [HealthFilter, string])[] = [
    ["any", `All ${formatCount(all.length)}`], ["up", `Up ${formatCount(counts.up)}`], ["down", `Down ${formatCount(counts.down)}`], ["unknown", `Unknown ${formatCount(counts.unknown)}`],
  ];
  return (
    <div class="page">
      <div class="page-head">
        <h1>Targets</h1>
        {has(features, "sd") && <SubNav label="Targets" routes={[["targets", "Targets"], ["service-discovery", "Service discovery"]]} current="targets" />}
        <span class="spacer" />
        <Segments<HealthFilter> label="Health" value={health} options={options} onChange={setHealth} />
        <Filter value={text} onInput={setText} label="Filter by address, label or error" />
        <button type="button" class="button icon-only" aria-label="Refresh now" title="Refresh now" onClick={reload}><icons.Refresh /></button>
      </div>
      <Progress on={loading && !result} />
      {error && <Failure error={error} onRetry={reload} />}
      {pools.map((p) => <PoolCard key={p.name} pool={p} few={all.length <= OPEN_MAX || text !== "" || health !== "any"} />)}
      {result && all.length === 0 && pools.length === 0 && <Empty title="No targets">The configuration has no scrape targets.</Empty>}
      {result && all.length > 0 && pools.length === 0 && <Empty title="No target matches the filter" />}
    </div>
  );
}

/** With more targets pools begin closed, but for those with a target that is down. */
const OPEN_MAX = 200;
const ROWS_MAX = 100;
const ROWS_MORE = 500;

function PoolCard({ pool, few }: { pool: PoolOf<Target>; few: boolean }) {
  const { up, down, unknown } = countHealth(pool.targets);
  const [chosen, setOpen] = useState<boolean | null>(null);
  const [most, setMost] = useState(ROWS_MAX);
  const open = chosen ?? (few || down > 0);
  // If not all targets are shown, targets that are down come first.
  const rows = pool.targets.length <= most ? pool.targets : [...pool.targets].sort((a, b) => Number(b.health === "down") - Number(a.health === "down")).slice(0, most);
  return (
    <section class="card pool" aria-label={`Scrape pool ${pool.name}`}>
      <h2>
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
          <span class={`turn ${open ? "open" : ""}`}><icons.Right /></span>{pool.name}
        </button>
        <span class={`badge ${down > 0 ? "down" : unknown > 0 ? "unknown" : "up"}`}>{up} of {pool.targets.length} up</span>
        {pool.dropped > 0 && <span class="hint">{plural(pool.dropped, "target")} dropped by relabelling</span>}
      </h2>
      {open && pool.targets.length > 0 && (
        <div class="table-scroll">
          <table class="data targets">
            <thead><tr><th scope="col">Endpoint</th><th scope="col">State</th><th scope="col">Labels</th><th scope="col" class="num">Last scrape</th><th scope="col" class="num">Took</th></tr></thead>
            <tbody>{rows.map((t) => <TargetRows key={t.scrapeUrl + JSON.stringify(t.labels)} target={t} />)}</tbody>
          </table>
          {rows.length < pool.targets.length && <p class="hint rules-more">{rows.length} of {formatCount(pool.targets.length)} targets.<button type="button" class="link" onClick={() => setMost(most + ROWS_MORE)}>Show more</button></p>}
        </div>
      )}
    </section>
  );
}

function TargetRows({ target: t }: { target: Target }) {
  const [more, setMore] = useState(false);
  const never = t.lastScrape.startsWith("0001-");
  return (
    <>
      <tr>
        <td class="endpoint">
          {/^https?:\/\//i.test(t.globalUrl) ? <a href={t.globalUrl} rel="noreferrer noopener" target="_blank">{t.scrapeUrl}</a> : t.scrapeUrl}
          {t.lastError !== "" && <p class="target-error">{t.lastError}</p>}
        </td>
        <td><span class={`badge ${t.health}`}>{t.health}</span></td>
        <td>
          <LabelList labels={t.labels} />
          <button type="button" class="link" aria-expanded={more} onClick={() => setMore(!more)}>{more ? "Hide discovered labels" : "Discovered labels"}</button>
        </td>
        <td class="num" title={never ? "" : t.lastScrape}>{never ? "never" : formatAgo(Date.now() - Date.parse(t.lastScrape))}{t.scrapeInterval && <span class="every">every {t.scrapeInterval}</span>}</td>
        <td class="num">{never ? "–" : formatElapsed(t.lastScrapeDuration * 1000)}</td>
      </tr>
      {more && <tr class="discovered"><td colSpan={5}><LabelList labels={t.discoveredLabels} /></td></tr>}
    </>
  );
}
