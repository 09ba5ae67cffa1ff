// Build, storage, flags and configuration of the server.
import "../style/pages.css";
import { useMemo } from "preact/hooks";
import { APIError } from "../api/client.ts";
import { has, useAPI, useFeatures, type Loaded } from "../api/hooks.ts";
import type { NameValue, TSDBStatus } from "../api/types.ts";
import { formatUptime } from "../lib/duration.ts";
import { formatBytes, formatCount } from "../lib/format.ts";
import type { Route } from "../lib/route.ts";
import { formatTime } from "../lib/time.ts";
import { CopyButton, Empty, Failure, Filter, Progress, SubNav } from "../parts/small.tsx";
import { useSearchParam } from "../parts/searchparam.ts";
import { usePrefs } from "../prefs.ts";
import { Blocks } from "./blocks.tsx";
import { Queries } from "./queries.tsx";
import { Stores } from "./stores.tsx";
import { Yaml } from "./yaml.tsx";

const SECTIONS: readonly (readonly [Route, string])[] = [["status", "Server"], ["tsdb-status", "TSDB"], ["blocks", "Blocks"], ["flags", "Flags"], ["config", "Configuration"], ["stores", "Stores"], ["queries", "Queries"]];

/** Sections by the feature that they need; others are always there. */
const NEEDS: Partial<Record<Route, string>> = { "tsdb-status": "tsdb", blocks: "blocks", flags: "flags", config: "config", stores: "stores", queries: "queries" };

export function StatusPage({ route }: { route: Route }) {
  const features = useFeatures();
  const sections = SECTIONS.filter(([r]) => r === route || NEEDS[r] === undefined || has(features, NEEDS[r]!));
  return (
    <div class="page">
      <div class="page-head">
        <h1>Status</h1>
        <SubNav label="Status pages" routes={sections} current={route} />
      </div>
      {route === "status" && <ServerStatus />}
      {route === "tsdb-status" && <TSDB />}
      {route === "blocks" && <Blocks />}
      {route === "flags" && <Flags />}
      {route === "config" && <Config />}
      {route === "stores" && <Stores />}
      {route === "queries" && <Queries />}
    </div>
  );
}

/** Shows progress, or the error. */
function Loading({ of }: { of: Loaded<unknown> }) {
  if (of.error instanceof APIError && of.error.status === 404) return <Empty title="This server does not have this">Another role of ferula does: <code>ferula serve</code>, most likely.</Empty>;
  return <><Progress on={of.loading && !of.result} />{of.error && <Failure error={of.error} onRetry={of.reload} />}</>;
}

function ServerStatus() {
  const build = useAPI<Record<string, string>>("status/buildinfo");
  const runtime = useAPI<Record<string, string | number | boolean>>("status/runtimeinfo");
  return (
    <div class="columns">
      <section class="card"><h2>Build</h2><Loading of={build} />{build.result && <Facts rows={buildRows(build.result.data)} />}</section>
      <section class="card"><h2>Runtime</h2><Loading of={runtime} />{runtime.result && <RuntimeFacts data={runtime.result.data} />}</section>
    </div>
  );
}

/** Only what was set at the build: an unset revision is left out. The server's own name comes first. */
function buildRows({ program, ...rest }: Record<string, string>): [string, string][] {
  const rows = Object.entries(rest).filter(([, v]) => v !== "").map(([k, v]): [string, string] => [program && k === "version" ? "Prometheus version" : words(k), v]);
  return program ? [["Program", program], ...rows] : rows;
}

const NAMES: Record<string, string> = {
  goVersion: "Go version", buildUser: "Built by", buildDate: "Built on", CWD: "Working directory", startTime: "Started",
  reloadConfigSuccess: "Last configuration reload", lastConfigTime: "Configuration read", corruptionCount: "WAL corruptions",
  goroutineCount: "Goroutines", storageRetention: "Retention", serverTime: "Server time",
};

/** "branch" is "Branch"; names that are already in capitals are left as they are. */
const words = (key: string): string => NAMES[key] ?? key[0]!.toUpperCase() + key.slice(1);

function RuntimeFacts({ data }: { data: Record<string, string | number | boolean> }) {
  const { zone } = usePrefs();
  const show = (k: string, v: string | number | boolean): string => {
    if (/Time$/.test(k) && typeof v === "string") return formatTime(Math.floor(Date.parse(v) / 1000) * 1000, zone);
    if (k === "reloadConfigSuccess") return v ? "successful" : "failed";
    // The server encodes "no limit" as the largest integer.
    if (k === "GOMEMLIMIT" && typeof v === "number") return v > 1e18 ? "none" : formatBytes(v);
    return typeof v === "number" ? formatCount(v) : String(v);
  };
  const rows = Object.entries(data).map(([k, v]): [string, string] => [words(k), show(k, v)]);
  const started = Date.parse(String(data["startTime"]));
  if (started > 0) rows.unshift(["Running for", formatUptime(Date.now() - started)]);
  return <Facts rows={rows} />;
}

function Facts({ rows }: { rows: readonly (readonly [string, string])[] }) {
  return <dl class="facts">{rows.map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v === "" ? <span class="none">–</span> : v}</dd></div>)}</dl>;
}

function TSDB() {
  const { zone } = usePrefs();
  const [limit, setLimit] = useSearchParam("limit");
  const status = useAPI<TSDBStatus>("status/tsdb", { limit: /^\d+$/.test(limit) ? limit : 10 });
  const d = status.result?.data;
  if (!d) return <Loading of={status} />;
  const { numSeries, chunkCount, numLabelPairs, minTime, maxTime } = d.headStats;
  const empty = minTime > maxTime;
  return (
    <>
      <Loading of={status} />
      <section class="card head" aria-label="Head">
        <Figure title="Series" value={formatCount(numSeries)} />
        <Figure title="Chunks" value={formatCount(chunkCount)} />
        <Figure title="Label pairs" value={formatCount(numLabelPairs)} />
        <Figure title="Oldest sample" value={empty ? "–" : formatTime(minTime - (minTime % 1000), zone)} small />
        <Figure title="Newest sample" value={empty ? "–" : formatTime(maxTime - (maxTime % 1000), zone)} small />
      </section>
      <label class="field limit"><span>Entries in each list</span>
        <select class="button" value={limit === "" ? "10" : limit} onChange={(e) => setLimit(e.currentTarget.value === "10" ? "" : e.currentTarget.value)}>
          {[...new Set(["10", "20", "50", "100", "500", ...(limit === "" ? [] : [limit])])].map((n) => <option key={n} value={n}>{n}</option>)}
        </select></label>
      <div class="columns">
        <Top title="Series by metric" rows={d.seriesCountByMetricName} format={formatCount} />
        <Top title="Series by label pair" rows={d.seriesCountByLabelValuePair} format={formatCount} />
        <Top title="Values by label" rows={d.labelValueCountByLabelName} format={formatCount} />
        <Top title="Memory by label" rows={d.memoryInBytesByLabelName} format={formatBytes} />
      </div>
    </>
  );
}

const Figure = ({ title, value, small }: { title: string; value: string; small?: boolean }) =>
  <div class={`figure ${small ? "small" : ""}`}><span>{title}</span><b>{value}</b></div>;

function Top({ title, rows, format }: { title: string; rows: NameValue[] | null; format: (n: number) => string }) {
  const list = rows ?? [];
  const most = Math.max(1, ...list.map((r) => r.value));
  return (
    <section class="card">
      <h2>{title}</h2>
      {list.length === 0 ? <Empty title="None" /> : (
        <table class="top-list"><tbody>
          {list.map((r) => (
            <tr key={r.name}><th scope="row"><span class="share" style={{ width: `${(r.value / most) * 100}%` }} /><code>{r.name}</code></th><td>{format(r.value)}</td></tr>
          ))}
        </tbody></table>
      )}
    </section>
  );
}

function Flags() {
  const flags = useAPI<Record<string, string>>("status/flags");
  const [text, setText] = useSearchParam("find");
  const rows = useMemo(() => Object.entries(flags.result?.data ?? {}).sort(([a], [b]) => (a < b ? -1 : 1)), [flags.result]);
  const found = rows.filter(([k, v]) => `--${k}=${v}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <section class="card">
      <div class="card-tools"><Filter value={text} onInput={setText} label="Filter flags" /></div>
      <Loading of={flags} />
      <table class="data flags"><tbody>
        {found.map(([k, v]) => <tr key={k}><th scope="row"><code>--{k}</code></th><td><code>{v === "" ? <span class="none">empty</span> : v}</code></td></tr>)}
      </tbody></table>
      {flags.result && found.length === 0 && <Empty title="No flag matches" />}
    </section>
  );
}

function Config() {
  const config = useAPI<{ yaml: string }>("status/config");
  const yaml = config.result?.data.yaml;
  return (
    <section class="card config" aria-label="Configuration">
      <Loading of={config} />
      {yaml !== undefined && (yaml.trim() === "" ? <Empty title="No configuration file">The server runs with its defaults.</Empty> : (
        <><CopyButton text={yaml} label="Copy the configuration" /><Yaml text={yaml} /></>
      ))}
    </section>
  );
}
