// The Alertmanagers that the server has discovered: those that receive its alerts, and those that relabelling dropped.
import "../style/pages.css";
import { useState } from "preact/hooks";
import { APIError } from "../api/client.ts";
import { useAPI, useAutoRefresh, useFeatures } from "../api/hooks.ts";
import { formatCount, plural } from "../lib/format.ts";
import { useSearchParam } from "../parts/searchparam.ts";
import { Empty, Failure, Filter, Progress, SubNav } from "../parts/small.tsx";
import { alertRoutes } from "./page.tsx";

const REFRESH_MS = 15_000;
const ROWS_MAX = 500;

interface Alertmanager { url: string }
interface Found { activeAlertmanagers: Alertmanager[] | null; droppedAlertmanagers: Alertmanager[] | null }

export function AlertmanagersPage() {
  const [tick, setTick] = useState(0);
  const { result, error, loading, reload } = useAPI<Found>("alertmanagers", {}, tick);
  const [text, setText] = useSearchParam("find");
  useAutoRefresh(REFRESH_MS, () => setTick((n) => n + 1));
  const matching = (list: Alertmanager[] | null) => (list ?? []).filter((a) => a.url.toLowerCase().includes(text.toLowerCase()));
  const [active, dropped] = [matching(result?.data.activeAlertmanagers ?? null), matching(result?.data.droppedAlertmanagers ?? null)];
  return (
    <div class="page">
      <div class="page-head">
        <h1>Alertmanagers</h1>
        <SubNav label="Alerts and rules" routes={alertRoutes(useFeatures())} current="alertmanager-discovery" />
        <span class="spacer" />
        <Filter value={text} onInput={setText} label="Filter by address" />
      </div>
      <Progress on={loading && !result} />
      {error instanceof APIError && error.status === 404 ? <Empty title="This server sends no alerts" /> : error && <Failure error={error} onRetry={reload} />}
      {active.length > 0 && <List title="Alerts are sent to" of={active} />}
      {dropped.length > 0 && <List title="Dropped by relabelling" of={dropped} />}
      {result && active.length + dropped.length === 0 && (text === ""
        ? <Empty title="No Alertmanagers"><code>alerting</code> of the configuration names them.</Empty> : <Empty title="No Alertmanager matches the filter" />)}
    </div>
  );
}

function List({ title, of }: { title: string; of: readonly Alertmanager[] }) {
  return (
    <section class="card alertmanagers" aria-label={title}>
      <h2>{title} <span class="hint">{plural(of.length, "Alertmanager")}</span></h2>
      <ul>
        {of.slice(0, ROWS_MAX).map((a) => (
          // The link opens the page of the Alertmanager; other schemes than HTTP stay text.
          <li key={a.url}>{/^https?:\/\//i.test(a.url) ? <a href={a.url.replace(/\/api\/v2\/alerts$/, "")} rel="noreferrer noopener" target="_blank">{a.url}</a> : a.url}</li>
        ))}
      </ul>
      {of.length > ROWS_MAX && <p class="hint rules-more">The first {ROWS_MAX} of {formatCount(of.length)}; a filter finds the others.</p>}
    </section>
  );
}
