// Example queries of metrics that the server has, so that every example has data.
import { formatDuration } from "./duration.ts";

export interface Example { title: string; expr: string }

interface Candidate { title: string; needs: string; expr: string }

const CANDIDATES: readonly Candidate[] = [
  { title: "CPU per process", needs: "process_cpu_seconds_total", expr: "rate(process_cpu_seconds_total[$w])" },
  { title: "CPU per machine", needs: "node_cpu_seconds_total", expr: '1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[$w]))' },
  { title: "Resident memory", needs: "process_resident_memory_bytes", expr: "process_resident_memory_bytes" },
  { title: "Goroutines", needs: "go_goroutines", expr: "go_goroutines" },
  { title: "Samples per scrape", needs: "scrape_samples_scraped", expr: "scrape_samples_scraped" },
  { title: "Samples stored per second", needs: "prometheus_tsdb_head_samples_appended_total", expr: "rate(prometheus_tsdb_head_samples_appended_total[$w])" },
  { title: "Heap in use", needs: "go_memstats_heap_inuse_bytes", expr: "go_memstats_heap_inuse_bytes" },
  { title: "Scrape duration", needs: "scrape_duration_seconds", expr: "scrape_duration_seconds" },
  { title: "Targets up", needs: "up", expr: "up" },
];

const EXAMPLES_MAX = 6;

/** A matcher for the names chooseExamples looks at: large servers have a hundred thousand others. */
export const EXAMPLE_NAMES = `{__name__=~"${CANDIDATES.map((c) => c.needs).join("|")}|(.+_)?http_requests_total"}`;

/** HTTP traffic is what most people look for first, and its metric has another prefix in every program. */
function requestsExample(names: readonly string[]): Example[] {
  const name = names.find((n) => /(^|_)http_requests_total$/.test(n));
  return name === undefined ? [] : [{ title: "HTTP requests per second", expr: `sum by (handler, code) (rate(${name}[$w]))` }];
}

/** A rate needs at least two samples in its window, also when one scrape failed: four scrapes, or five minutes if nothing is known. */
export function rateWindow(scrapeMS: number | null): string {
  return scrapeMS === null ? "5m" : formatDuration(Math.max(60_000, 4 * scrapeMS));
}

const withWindow = (expr: string, window: string): string => expr.replaceAll("[$w]", `[${window}]`);

export function chooseExamples(names: readonly string[], window = "1m"): Example[] {
  const have = new Set(names);
  const found = CANDIDATES.filter((c) => have.has(c.needs)).map(({ title, expr }) => ({ title, expr }));
  const list = [...found.slice(0, 2), ...requestsExample(names), ...found.slice(2)].map(({ title, expr }) => ({ title, expr: withWindow(expr, window) }));
  // "up" closes the list however many came before it: every Prometheus user tries it.
  const head = list.filter((e) => e.expr !== "up").slice(0, EXAMPLES_MAX - 1);
  return have.has("up") ? [...head, { title: "Targets up", expr: "up" }] : head;
}

/** A rate needs two scrapes. Before they are certain to be there, something that one scrape can show is the better start. */
const RATE_NEEDS_MS = 20_000;

/** What to show first of data that is `ageMS` old; undefined where there is nothing to show. */
export function firstExample(examples: readonly Example[], ageMS: number): Example | undefined {
  const young = ageMS < RATE_NEEDS_MS ? examples.find((e) => !e.expr.includes("rate(")) : undefined;
  return young ?? examples[0];
}

/** A range that young data fills: a server of two minutes shows minutes of a line, not one thirtieth of an axis. */
export function firstRange(ageMS: number): number {
  const picks = [1, 2, 5, 10, 15, 30, 60].map((m) => m * 60_000);
  return picks.find((p) => p >= ageMS) ?? picks[picks.length - 1]!;
}

export type MetricType = "counter" | "gauge" | "histogram" | "summary" | "unknown" | string;

/** The usual query for a metric of this type. */
export function suggestExpr(name: string, type: MetricType, window = "1m"): string {
  if (type === "counter" || /_(total|count|sum)$/.test(name)) return `rate(${name}[${window}])`;
  if (type === "histogram" && name.endsWith("_bucket")) return `histogram_quantile(0.9, sum by (le) (rate(${name}[${window}])))`;
  return name;
}
