// Values of profiles as text, with their unit. The unit is the middle of a profile type: process_cpu:cpu:nanoseconds:cpu:nanoseconds.
import { formatShort, formatTicks } from "./format.ts";

type Scale = readonly (readonly [number, string])[];

const TIME: Scale = [[3.6e12, "h"], [6e10, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const BYTES: Scale = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

const SCALES: Readonly<Record<string, Scale>> = { nanoseconds: TIME, bytes: BYTES };

const pick = (scale: Scale, size: number) => scale.find(([n]) => size >= n) ?? scale[scale.length - 1]!;

const digits = (v: number): string => (Number.isInteger(v) && Math.abs(v) < 1e4 ? String(v) : String(Number(v.toPrecision(3))));

/** "1.25 s", "3.4 MiB", "1.2k": three digits, because the fourth does not help to compare. */
export function formatUnit(v: number, unit: string): string {
  const scale = SCALES[unit];
  if (!scale || !Number.isFinite(v)) return formatShort(v);
  if (v === 0) return `0 ${scale[scale.length - 1]![1]}`;
  const [size, name] = pick(scale, Math.abs(v));
  return `${digits(v / size)} ${name}`;
}

/** Ticks of one axis share one unit, so that the column of numbers lines up. */
export function formatUnitTicks(ticks: readonly number[], unit: string): string[] {
  const scale = SCALES[unit];
  if (!scale) return formatTicks(ticks);
  const [size, name] = pick(scale, Math.max(0, ...ticks.map(Math.abs)));
  return formatTicks(ticks.map((v) => v / size)).map((text) => (text === "0" ? text : `${text} ${name}`));
}

/** "34.2 %", "0.04 %": a share of the whole, never "0 %" for something that is there. */
export function formatShare(part: number, whole: number): string {
  if (whole <= 0) return "–";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  return `${percent.toFixed(percent < 10 ? 2 : 1)} %`;
}
