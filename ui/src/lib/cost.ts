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

/** Figures of a query, as the API sends them with stats=true. */
export interface QueryStats {
  timings?: Record<string, number>;
  samples?: { totalQueryableSamples?: number; peakSamples?: number };
}
