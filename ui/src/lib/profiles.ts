// Types of the profile API's JSON, with the members that the page reads, and their conversion to the columns of a chart.
import type { Labels } from "./labels.ts";
import { columnsOf, type Column, type Columns } from "./matrix.ts";
import { gridLength, type Grid } from "./step.ts";

export interface Pair { name: string; value: string }
export interface WireExemplar { timestamp: string; profileId?: string; traceId?: string; spanId?: string; value?: string; labels?: Pair[] }
export interface WirePoint { value?: number; timestamp: string; exemplars?: WireExemplar[] }
export interface WireSeries { labels?: Pair[]; points?: WirePoint[] }

export interface ProfileType { ID: string; name: string; sampleType: string; sampleUnit: string; periodType?: string; periodUnit?: string }

/** A dot of a chart: one measured profile, or one request. */
export interface Dot {
  /** The line it belongs to, for its colour. */
  series: number;
  timeMS: number;
  value: number;
  labels: Labels;
  /** Where it is drawn, if not at its value: a profile lies on the line of its service. */
  y?: number;
  /** Its value as text, where the line has another unit. */
  text?: string;
}

export interface ProfileDot extends Dot { id: string }

export const toLabels = (pairs: readonly Pair[] | undefined): Labels =>
  Object.fromEntries((pairs ?? []).map(({ name, value }) => [name, value]));

/** "process_cpu:cpu:nanoseconds:cpu:nanoseconds" in parts; text that is no type keeps its name only. */
export function parseType(id: string): ProfileType {
  const [name = "", sampleType = "", sampleUnit = "", periodType = "", periodUnit = ""] = id.split(":");
  return { ID: id, name, sampleType, sampleUnit, periodType, periodUnit };
}

const TYPE_NAMES: Readonly<Record<string, string>> = {
  "process_cpu:cpu": "CPU time",
  "process_cpu:samples": "CPU samples",
  "memory:inuse_space": "Memory in use",
  "memory:inuse_objects": "Objects in use",
  "memory:alloc_space": "Memory allocated",
  "memory:alloc_objects": "Objects allocated",
  "goroutine:goroutine": "Goroutines",
  "goroutines:goroutine": "Goroutines",
  "mutex:contentions": "Mutex contentions",
  "mutex:delay": "Mutex delay",
  "block:contentions": "Blocking events",
  "block:delay": "Blocked time",
};

/** What a person calls the type; unknown ones keep their own words. */
export function typeName(t: ProfileType): string {
  return TYPE_NAMES[`${t.name}:${t.sampleType}`] ?? `${t.name} ${t.sampleType}`.replace(/_/g, " ").trim();
}

/** CPU first: it is what most people come for. */
export function defaultType(types: readonly ProfileType[]): string {
  return (types.find((t) => t.sampleType === "cpu") ?? types[0])?.ID ?? "";
}

export interface ProfileColumns { columns: Columns; dots: ProfileDot[] }

/** How points become figures, and what a dot states of its profile. */
export interface Drawing { factor: number; text: (v: number) => string; /** The name of a line without labels. */ alone: Labels }

/**
 * Points on their grid, gaps where nothing was measured, and their exemplars, each on the line of its step: what one profile
 * holds has another unit than what a step does.
 */
export function profileColumns(series: readonly WireSeries[], g: Grid, seriesMax: number, d: Drawing): ProfileColumns {
  const n = gridLength(g);
  const drawn = series.slice(0, seriesMax);
  const dots: ProfileDot[] = [];
  const values = drawn.map((s, i): Column => {
    const column = new Float64Array(n).fill(NaN);
    for (const p of s.points ?? []) {
      const at = Math.round((Number(p.timestamp) - g.start) / g.step);
      const v = (p.value ?? 0) * d.factor;
      if (at >= 0 && at < n) column[at] = v;
      for (const e of p.exemplars ?? []) {
        if (!e.profileId) continue;
        const value = Number(e.value ?? 0);
        dots.push({ series: i, timeMS: Number(e.timestamp), value, y: v, text: d.text(value), id: e.profileId, labels: toLabels(e.labels) });
      }
    }
    return column;
  });
  const labelsOf = (s: WireSeries): Labels => ((s.labels ?? []).length > 0 ? toLabels(s.labels) : d.alone);
  return {
    columns: columnsOf(g, values, drawn.map(labelsOf), series.length - drawn.length),
    dots,
  };
}

/** The selector of a service and further matchers: `{service_name="a", pod="b"}`. */
export function selectorOf(service: string, matchers: string): string {
  const parts = service === "" ? [] : [`service_name="${service.replace(/\\/g, "\\\\").replace(/"/g, '\\"')}"`];
  const rest = matchers.trim().replace(/^\{|\}$/g, "").trim();
  if (rest !== "") parts.push(rest);
  return `{${parts.join(", ")}}`;
}

/** Adds a matcher to a list of them, in place of one of the same label and operator. */
export function withMatcher(matchers: string, name: string, op: "=" | "!=", value: string): string {
  const rest = splitMatchers(matchers).filter((m) => !(m.startsWith(`${name}=`) && op === "=" && !m.startsWith(`${name}=~`)));
  const one = `${name}${op}"${value.replace(/\\/g, "\\\\").replace(/"/g, '\\"').replace(/\n/g, "\\n")}"`;
  return (rest.includes(one) ? rest : [...rest, one]).join(", ");
}

/** Matchers between commas that are not within quotes. */
export function splitMatchers(text: string): string[] {
  const bare = text.trim().replace(/^\{|\}$/g, "");
  return (bare.match(/(?:[^,"]|"(?:[^"\\]|\\.)*")+/g) ?? []).map((m) => m.trim()).filter((m) => m !== "");
}

/** What is being typed at the end of a list of matchers: what stands before it, and the label and operator that its value is of. */
export interface Completing { head: string; name: string; op: string }

export function completing(text: string): Completing {
  let [cut, quoted] = [0, false];
  for (let i = 0; i < text.length; i++) {
    if (quoted && text[i] === "\\") i++;
    else if (text[i] === '"') quoted = !quoted;
    else if (text[i] === "," && !quoted) cut = i + 1;
  }
  const [, space = "", name = "", op = ""] = /^(\s*\{?\s*)([A-Za-z_][\w.]*)?\s*(=~|!~|!=|=)?/.exec(text.slice(cut))!;
  return { head: text.slice(0, cut) + space, name: op === "" ? "" : name, op };
}
