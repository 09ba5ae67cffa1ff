// Numbers as text. Prometheus' values keep their full precision in tables; graphs show fewer digits.

const SI: readonly (readonly [number, string])[] = [
  [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"],
];

/** A sample's text as the API wrote it. */
export function parseSample(text: string): number {
  if (text === "+Inf" || text === "Inf") return Infinity;
  if (text === "-Inf") return -Infinity;
  return text === "NaN" ? NaN : Number(text);
}

function special(v: number): string | null {
  if (Number.isNaN(v)) return "NaN";
  if (v === Infinity) return "+Inf";
  if (v === -Infinity) return "-Inf";
  return v === 0 ? "0" : null;
}

/** Drops what toPrecision pads with: "1.500" is "1.5", "2.000" is "2". */
function trim(text: string): string {
  if (text.includes("e")) return text.replace(/\.?0*e\+?/, "e");
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Short: four digits and a decimal prefix. 28491776 is "28.49M". Small numbers stay plain: "0.0042" needs no unit. */
export function formatShort(v: number): string {
  const s = special(v);
  if (s !== null) return s;
  const abs = Math.abs(v);
  if (abs >= 1e21 || abs < 1e-4) return trim(v.toExponential(2));
  for (const [size, prefix] of SI) {
    // 999.96 would round to "1000"; the next prefix up takes it.
    if (abs >= size * 0.99995) return trim((v / size).toPrecision(4)) + prefix;
  }
  return trim(v.toPrecision(4));
}

/** Long: what a person copies from a tooltip. Digits are kept up to what a float honestly holds of them. */
export function formatLong(v: number): string {
  const s = special(v);
  if (s !== null) return s;
  const abs = Math.abs(v);
  if (abs >= 1e15 || abs < 1e-6) return trim(v.toExponential(6));
  if (Number.isInteger(v)) return String(v);
  return trim(v.toPrecision(Math.min(15, Math.max(7, Math.ceil(Math.log10(abs)) + 4))));
}

/** Ticks of one axis: one prefix and one count of decimals for all, so that the column of numbers lines up. */
export function formatTicks(ticks: readonly number[]): string[] {
  const top = Math.max(0, ...ticks.map(Math.abs));
  const delta = ticks.length > 1 ? Math.abs(ticks[1]! - ticks[0]!) : top;
  if (top > 0 && (top < 1e-4 || top >= 1e21)) return ticks.map((v) => (v === 0 ? "0" : trim(v.toExponential(2))));
  const [size, prefix] = SI.find(([n]) => top >= n) ?? [1, ""];
  const decimals = Math.min(10, Math.max(0, -Math.floor(Math.log10(delta / size) + 1e-9)));
  const extra = needsDigit(delta / size, decimals) ? 1 : 0;
  return ticks.map((v) => (v === 0 ? "0" : (v / size).toFixed(decimals + extra) + prefix));
}

/** 0.25 needs two decimals though its magnitude needs one. */
function needsDigit(delta: number, decimals: number): boolean {
  const scaled = delta * 10 ** decimals;
  return Math.abs(scaled - Math.round(scaled)) > 1e-6;
}

/** 1536 is "1.5 KiB": what memory and disks are measured in. */
export function formatBytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let v = n;
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; i++) v /= 1024;
  return `${i === 0 ? v : v.toFixed(v < 10 ? 1 : 0)} ${units[i]}`;
}

/** Counts with a thin space between thousands: read at a glance, and the same in every locale. */
export function formatCount(n: number): string {
  return String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** "1 series" and "2 series" are alike, "1 target" and "2 targets" are not. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${formatCount(n)} ${n === 1 ? one : many}`;
}
