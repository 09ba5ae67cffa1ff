// Grafana's variables in a pasted query. The editor keeps them; the query that is sent has durations instead.
import { formatDuration } from "./duration.ts";

export interface Surroundings { rangeMS: number; stepMS: number; endMS: number; /** null where the server does not tell. */ scrapeMS: number | null }

const SCRAPE_DEFAULT_MS = 15_000;

/** As Grafana has it: at least four scrapes, and one more than the step, so that no step misses an increase. */
export function rateIntervalMS(stepMS: number, scrapeMS: number | null): number {
  const scrape = scrapeMS ?? SCRAPE_DEFAULT_MS;
  return Math.max(stepMS + scrape, 4 * scrape);
}

const VARIABLE = /\$(?:__(?:rate_interval|interval|range|from|to|auto)(?:_ms|_s)?\b|\{__(?:rate_interval|interval|range|from|to|auto)(?:_ms|_s)?\})/g;

export const hasVariables = (expr: string): boolean => expr.search(VARIABLE) >= 0;

/** Unknown variables stay: the server's error then names them. */
export function expandVariables(expr: string, s: Surroundings): string {
  return expr.replace(VARIABLE, (text) => valueOf(text.replace(/[${}]/g, "").slice(2), s) ?? text);
}

function valueOf(name: string, s: Surroundings): string | null {
  const m = /^(rate_interval|interval|range|from|to|auto)(_ms|_s)?$/.exec(name);
  if (!m) return null;
  const [, base, unit = ""] = m;
  if (base === "from") return String(s.endMS - s.rangeMS);
  if (base === "to") return String(s.endMS);
  const ms = base === "range" ? s.rangeMS : base === "rate_interval" ? rateIntervalMS(s.stepMS, s.scrapeMS) : s.stepMS;
  return unit === "_ms" ? String(ms) : unit === "_s" ? String(Math.round(ms / 1000)) : formatDuration(ms);
}

/** The longest scrape interval that a configuration names, in ms; null where it names none. */
export function scrapeIntervalOf(yaml: string, parse: (text: string) => number | null): number | null {
  const found = [...yaml.matchAll(/^\s*(?:- )?scrape_interval:\s*"?([0-9a-z]+)"?\s*$/gm)].map((m) => parse(m[1]!)).filter((ms): ms is number => ms !== null && ms > 0);
  return found.length === 0 ? null : Math.max(...found);
}
