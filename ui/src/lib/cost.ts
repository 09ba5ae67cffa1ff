// The cost of a response, from its headers.

export interface Stage { name: string; ms: number; text: string }

/** The header Server-Timing: `queue;dur=1.2, fetch;dur=30;desc="3 parts"`. Entries without a duration are left out. */
export function parseServerTiming(header: string): Stage[] {
  const stages: Stage[] = [];
  for (const entry of splitOutside(header, ",")) {
    const [name = "", ...rest] = splitOutside(entry, ";").map((t) => t.trim());
    const params = new Map(rest.map((p) => { const at = p.indexOf("="); return [p.slice(0, at).trim().toLowerCase(), unquote(p.slice(at + 1).trim())] as const; }));
    const ms = Number(params.get("dur") ?? NaN);
    if (name !== "" && Number.isFinite(ms)) stages.push({ name, ms, text: params.get("desc") ?? "" });
  }
  return stages;
}

/** Splits at a character that is not within quotes. */
function splitOutside(text: string, at: string): string[] {
  const out: string[] = [];
  let [from, quoted] = [0, false];
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && quoted) i++;
    else if (text[i] === '"') quoted = !quoted;
    else if (text[i] === at && !quoted) { out.push(text.slice(from, i)); from = i + 1; }
  }
  return [...out, text.slice(from)];
}

const unquote = (text: string): string => (/^".*"$/.test(text) ? text.slice(1, -1).replace(/\\(.)/g, "$1") : text);

/** What one store sent for a query, with analyze=true. */
export interface StoreCost { endpointAddr?: string; duration?: string; bytesProcessed?: number; numResponses?: number; series?: number; chunks?: number }

/** A querier's analysis of a query: `fanout` has an entry for each store that it requested. */
export interface Analysis { executionTime?: string; fanout?: StoreCost[] | null }

const UNITS: Readonly<Record<string, number>> = { h: 3_600_000, m: 60_000, s: 1000, ms: 1, "µs": 1e-3, "μs": 1e-3, us: 1e-3, ns: 1e-6 };

/** A duration as Go writes it, such as "1m2.5s" or "350µs", in ms; NaN for other texts. */
export function goDurationMS(text: string): number {
  const parts = [...text.matchAll(/([\d.]+)(h|ms|m|s|µs|μs|us|ns)/g)];
  if (parts.length === 0 || parts.map((p) => p[0]).join("") !== text) return NaN;
  return parts.reduce((sum, [, n, unit]) => sum + Number(n) * UNITS[unit!]!, 0);
}

/** Figures of a query, as the API sends them with stats=true. */
export interface QueryStats {
  timings?: Record<string, number>;
  samples?: { totalQueryableSamples?: number; peakSamples?: number };
}
