// Absolute times as people type and read them, in the zone they chose. Times are milliseconds since 1970 throughout.
import { parseDuration } from "./duration.ts";

export type Zone = "local" | "utc";

const pad = (n: number, width = 2): string => String(n).padStart(width, "0");

interface Fields { y: number; mo: number; d: number; h: number; mi: number; s: number; ms: number }

function fields(t: number, zone: Zone): Fields {
  const d = new Date(t);
  if (zone === "utc") {
    return { y: d.getUTCFullYear(), mo: d.getUTCMonth() + 1, d: d.getUTCDate(), h: d.getUTCHours(), mi: d.getUTCMinutes(), s: d.getUTCSeconds(), ms: d.getUTCMilliseconds() };
  }
  return { y: d.getFullYear(), mo: d.getMonth() + 1, d: d.getDate(), h: d.getHours(), mi: d.getMinutes(), s: d.getSeconds(), ms: d.getMilliseconds() };
}

/** "2026-01-31 14:05:09", with milliseconds only where there are some. */
export function formatTime(t: number, zone: Zone): string {
  const f = fields(t, zone);
  const ms = f.ms === 0 ? "" : `.${pad(f.ms, 3)}`;
  return `${f.y}-${pad(f.mo)}-${pad(f.d)} ${pad(f.h)}:${pad(f.mi)}:${pad(f.s)}${ms}`;
}

/** The time alone, or with the day in front where `span` is long enough for the day to matter. */
export function formatMoment(t: number, zone: Zone, span: number): string {
  const full = formatTime(t, zone);
  return span > 20 * 3_600_000 ? full.slice(5) : full.slice(11);
}

/** "14:00 – 15:00", with the day where the two are not today or not the same. */
export function formatSpan(from: number, to: number, zone: Zone, now: number): string {
  const a = formatTime(from, zone).slice(0, 16);
  const b = formatTime(to, zone).slice(0, 16);
  const sameDay = a.slice(0, 10) === b.slice(0, 10);
  const today = sameDay && a.slice(0, 10) === formatTime(now, zone).slice(0, 10);
  return `${today ? a.slice(11) : a} – ${sameDay ? b.slice(11) : b}`;
}

const WALL = /^(\d{4})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?)?$/;

/** Time input: "now", "now-1h", a wall clock time in `zone`, RFC 3339, or Unix seconds. */
export function parseTime(text: string, zone: Zone, now: number): number | null {
  const t = text.trim();
  const relative = /^now(?:\s*-\s*(\S+))?$/.exec(t);
  if (relative) {
    const back = relative[1] === undefined ? 0 : parseDuration(relative[1]);
    return back === null ? null : now - back;
  }
  if (/^\d{9,11}(\.\d+)?$/.test(t)) return Math.round(parseFloat(t) * 1000);
  if (/^\d{12,14}$/.test(t)) return Number(t);
  const m = WALL.exec(t);
  if (m) return fromWall(m, zone);
  const parsed = /^\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:\d\d)$/.test(t) ? Date.parse(t) : NaN;
  return Number.isNaN(parsed) ? null : parsed;
}

function fromWall(m: RegExpExecArray, zone: Zone): number | null {
  const [y, mo, d, h, mi, s] = m.slice(1, 7).map((x) => Number(x ?? 0)) as [number, number, number, number, number, number];
  const ms = Number((m[7] ?? "0").padEnd(3, "0"));
  if (mo < 1 || mo > 12 || d < 1 || d > 31 || h > 23 || mi > 59 || s > 59) return null;
  const t = zone === "utc" ? Date.UTC(y, mo - 1, d, h, mi, s, ms) : new Date(y, mo - 1, d, h, mi, s, ms).getTime();
  // Date rolls 31 February over to March; a person who typed it made a mistake.
  return fields(t, zone).d === d ? t : null;
}

/**
 * The range of time of a store's samples. A bound that a store does not have is the largest or the smallest number, which no Date
 * can hold. A store without samples begins at the largest number, or ends at the smallest one.
 */
export function formatStored(minMS: number, maxMS: number, zone: Zone): string {
  const unbounded = 4e12;
  if (minMS > maxMS || minMS > unbounded || maxMS < -unbounded) return "no samples";
  const bound = (ms: number, open: string): string => (Math.abs(ms) > unbounded ? open : formatTime(Math.floor(ms / 1000) * 1000, zone));
  return `${bound(minMS, "the beginning")} – ${bound(maxMS, "now")}`;
}
