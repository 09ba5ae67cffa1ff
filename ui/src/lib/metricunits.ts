// The unit of a query's values, from the names of its metrics and from metadata. If the unit is uncertain no unit is shown: a wrong
// unit is worse than a number without one.
import { formatLong, formatShort, formatTicks } from "./format.ts";
import { formatUnit, formatUnitTicks } from "./units.ts";

/** As Prometheus names them in metric names; "" is a bare number. */
export type MetricUnit = "" | "seconds" | "bytes" | "ratio" | "bytes/s" | "seconds/s" | "/s";

const KNOWN = ["seconds", "bytes", "ratio"] as const;

/** x_seconds, x_seconds_total and the parts of a histogram x_seconds. */
function ofName(name: string): MetricUnit {
  if (/_count$/.test(name)) return "";
  const base = name.replace(/_(bucket|sum|total|created|max|min)$/, "");
  return KNOWN.find((u) => base.endsWith(`_${u}`) || base === u) ?? "";
}

/** Names of metrics in an expression: identifiers that are no function, keyword or label. */
export function metricNames(expr: string): string[] {
  const bare = expr
    .replace(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`/g, '""')
    .replace(/#.*$/gm, "")
    .replace(/\{[^}]*\}/g, "{}")
    .replace(/\[[^\]]*\]/g, "")
    .replace(/\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)/gi, "");
  const names = new Set<string>();
  for (const m of bare.matchAll(/[a-zA-Z_:][a-zA-Z0-9_:]*(\s*\()?/g)) {
    const word = m[0];
    if (!word.endsWith("(") && !KEYWORDS.has(word.toLowerCase())) names.add(word);
  }
  for (const m of expr.matchAll(/\{\s*__name__\s*=\s*"([^"\\]*)"/g)) names.add(m[1]!);
  return [...names];
}

const KEYWORDS = new Set(["and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right", "inf", "nan", "atan2",
  "sum", "avg", "min", "max", "count", "topk", "bottomk", "stddev", "stdvar", "quantile", "group", "count_values", "limitk", "limit_ratio"]);

/** `metadata` holds units by metric name, as far as they are known. */
export function unitOfExpr(expr: string, metadata: Readonly<Record<string, string>> = {}): MetricUnit {
  const names = metricNames(expr);
  if (names.length === 0) return "";
  const plain = expr.replace(/"(?:[^"\\]|\\.)*"/g, '""').replace(/\{[^}]*\}/g, "");
  if (/\b(count|count_values|count_over_time|changes|resets|stdvar|histogram_count|histogram_fraction|absent|absent_over_time|timestamp|group|quantile_over_time|ln|log2|log10|sqrt|exp|sgn|predict_linear|day_\w+|hour|minute|month|year)\s*(by\s*\([^)]*\)\s*)?\(/.test(plain)) return "";
  if (/[*^%]|\batan2\b|==|!=|>=|<=|\bbool\b/.test(plain.replace(/\[[^\]]*\]/g, ""))) return "";
  const units = new Set(names.map((n) => metadata[n] === undefined || metadata[n] === "" ? ofName(n) : (KNOWN.find((u) => u === metadata[n]) ?? "")));
  if (units.size !== 1) return "";
  const [unit] = units as Set<MetricUnit>;
  if (/\//.test(plain)) return "";
  // A bucket's rate counts observations; only its quantile has the unit of what was observed.
  if (names.some((n) => n.endsWith("_bucket"))) return /\bhistogram_quantile\s*\(/.test(plain) ? unit! : "";
  const perSecond = /\b(rate|irate|deriv|idelta)\s*\(/.test(plain) && !/\bidelta\s*\(/.test(plain);
  const summary = /\bhistogram_(quantile|avg|sum)\s*\(/.test(plain);
  if (!perSecond || summary) return unit!;
  return unit === "bytes" ? "bytes/s" : unit === "seconds" ? "seconds/s" : unit === "" && names.every((n) => /_(total|count)$/.test(n)) ? "/s" : "";
}

export interface UnitFormat { short: (v: number) => string; long: (v: number) => string; ticks: (t: readonly number[]) => string[]; title: string }

const NANO = 1e9;

export function unitFormat(unit: MetricUnit): UnitFormat | null {
  switch (unit) {
    case "seconds": return {
      title: "seconds", short: (v) => formatUnit(v * NANO, "nanoseconds"), long: (v) => `${formatLong(v)} s`,
      ticks: (t) => formatUnitTicks(t.map((v) => v * NANO), "nanoseconds"),
    };
    case "bytes": return { title: "bytes", short: (v) => formatUnit(v, "bytes"), long: (v) => `${formatUnit(v, "bytes")} (${formatLong(v)})`, ticks: (t) => formatUnitTicks(t, "bytes") };
    case "bytes/s": return { title: "bytes per second", short: (v) => `${formatUnit(v, "bytes")}/s`, long: (v) => `${formatUnit(v, "bytes")}/s`, ticks: (t) => formatUnitTicks(t, "bytes").map((x) => (x === "0" ? x : `${x}/s`)) };
    case "ratio": return { title: "ratio", short: (v) => `${formatShort(v * 100)} %`, long: (v) => `${formatLong(v * 100)} %`, ticks: (t) => formatTicks(t.map((v) => v * 100)).map((x) => (x === "0" ? x : `${x} %`)) };
    case "seconds/s": return { title: "seconds per second", short: formatShort, long: formatLong, ticks: (t) => formatTicks(t) };
    case "/s": return { title: "per second", short: (v) => `${formatShort(v)}/s`, long: (v) => `${formatLong(v)}/s`, ticks: (t) => formatTicks(t) };
    default: return null;
  }
}
