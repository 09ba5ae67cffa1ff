// Prometheus durations: "1h30m", "15s", "500ms". The grammar is Prometheus' own (units in descending order, each at most
// once), because the same text travels in Prometheus' links. Everything here is milliseconds.

const UNITS: readonly (readonly [string, number])[] = [
  ["y", 365 * 86_400_000],
  ["w", 7 * 86_400_000],
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1000],
  ["ms", 1],
];

const DURATION = /^(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?$/;

/** Milliseconds, or null where the text is no duration. A bare number is seconds, as in Prometheus' step parameter. */
export function parseDuration(text: string): number | null {
  const t = text.trim();
  if (/^\d+(\.\d+)?$/.test(t)) return Math.round(parseFloat(t) * 1000);
  const m = t === "" ? null : DURATION.exec(t);
  if (!m) return null;
  return UNITS.reduce((sum, [, ms], i) => sum + ms * Number(m[i + 1] ?? 0), 0);
}

/** The shortest text that parseDuration reads back: 5400000 is "1h30m". Years and weeks are left out: 30d reads better. */
export function formatDuration(ms: number): string {
  let rest = Math.round(ms);
  if (rest <= 0) return "0s";
  let out = "";
  for (const [unit, size] of UNITS.slice(2)) {
    const n = Math.floor(rest / size);
    if (n > 0) out += `${n}${unit}`;
    rest -= n * size;
  }
  return out;
}

const WORDS: readonly (readonly [string, number])[] = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1000],
];

/** "1 hour", "15 minutes", and "1h30m" where one unit does not do. */
export function spellDuration(ms: number): string {
  for (const [word, size] of WORDS) {
    if (ms >= size && ms % size === 0) return `${ms / size} ${word}${ms === size ? "" : "s"}`;
  }
  return formatDuration(ms);
}

/** A measured time, for people: 0.8 ms, 132 ms, 2.4 s, 3 min. */
export function formatElapsed(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return formatDuration(Math.round(ms / 1000) * 1000);
}

/** How long something has run, in its two largest units: "24m 25s", "3d 4h". */
export function formatUptime(ms: number): string {
  const parts = formatDuration(Math.floor(ms / 1000) * 1000).match(/\d+[a-z]+/g) ?? [];
  return parts.slice(0, 2).join(" ");
}

/** "4s ago", "2m ago": one unit, because a scrape's age is glanced at, not read. */
export function formatAgo(ms: number): string {
  if (ms < 1000) return "now";
  for (const [word, size] of WORDS) {
    if (ms >= size) return `${Math.floor(ms / size)}${word[0]} ago`;
  }
  return "now";
}
