// Converts the heat map of the profile API, the number of profiles or spans by time and value, to cells, and lists the profiles of
// a cell. A slot's time is the end of its step. The server divides the values between the least and
// the greatest into a fixed number of intervals, and sends intervals that are not empty.
import type { Heat, HeatRow } from "./heat.ts";
import type { Labels } from "./labels.ts";
import { toLabels, type WireExemplar } from "./profiles.ts";
import { gridLength, type Grid } from "./step.ts";

export interface WireSlot { timestamp?: string; yMin?: number[]; counts?: number[]; exemplars?: WireExemplar[] }
export interface WireHeat { series?: { slots?: WireSlot[] }[] }

/** How many intervals of values the server has. */
export const HEAT_ROWS = 20;

/** A time range, its start excluded, and a range of values. */
export interface Cell { start: number; end: number; low: number; high: number }

/** Null where nothing was measured. */
export function profileHeat(wire: WireHeat, g: Grid): Heat | null {
  const slots = (wire.series ?? []).flatMap((s) => s.slots ?? []);
  const lows = slots.flatMap((s) => s.yMin ?? []);
  if (lows.length === 0) return null;
  const n = gridLength(g);
  let [low, high] = [Infinity, -Infinity];
  for (const y of lows) { if (y < low) low = y; if (y > high) high = y; }
  // The least value is in the first interval and the greatest in the last, so both are always there.
  const width = (high - low) / (HEAT_ROWS - 1);
  const rows = Array.from({ length: width > 0 ? HEAT_ROWS : 1 }, (_, i): HeatRow => ({ lower: low + i * width, upper: low + (i + 1) * width, counts: new Float64Array(n).fill(NaN) }));
  let max = 0;
  for (const s of slots) {
    const at = Math.round((Number(s.timestamp ?? 0) - g.start) / g.step);
    if (at < 0 || at >= n) continue;
    (s.yMin ?? []).forEach((y, i) => {
      const row = rows[width > 0 ? Math.max(0, Math.min(HEAT_ROWS - 1, Math.round((y - low) / width))) : 0]!;
      const sum = (Number.isNaN(row.counts[at]!) ? 0 : row.counts[at]!) + (s.counts?.[i] ?? 0);
      row.counts[at] = sum;
      if (sum > max) max = sum;
    });
  }
  return { rows, columns: n, max };
}

export function cellOf(heat: Heat, g: Grid, column: number, row: number): Cell | null {
  const r = heat.rows[row];
  if (!r || column < 0 || column >= heat.columns || !(r.counts[column]! > 0)) return null;
  const end = g.start + column * g.step;
  return { start: end - g.step, end, low: r.lower, high: r.upper };
}

/** Where a cell of the address lies in what is drawn now, or null. */
export function placeOf(heat: Heat, g: Grid, cell: Cell): { column: number; row: number } | null {
  const column = Math.round((cell.end - g.start) / g.step);
  const middle = (cell.low + cell.high) / 2;
  const row = heat.rows.findIndex((r) => middle >= r.lower && (middle < r.upper || r.upper === r.lower));
  return column >= 0 && column < heat.columns && row >= 0 && heat.rows[row]!.counts[column]! > 0 ? { column, row } : null;
}

export interface One { id: string; span: string; trace: string; timeMS: number; value: number; labels: Labels }

/** A finer heat map of a cell's time, whose exemplars are single profiles: the parameters of its request, its start excluded as the cell's is. */
export function finer(cell: Cell): { start: string; end: string; step: number } {
  const stepMS = Math.max(1, Math.ceil((cell.end - cell.start) / FINER));
  return { start: String(cell.start + stepMS), end: String(cell.end), step: stepMS / 1000 };
}

const FINER = 60;

/** The profiles or spans of a finer heat map that belong to the cell, the greatest first. */
export function oneByOne(wire: WireHeat, cell: Cell): One[] {
  // The page and the server both compute the bounds, whose last digits may differ.
  const slack = (Math.abs(cell.low) + Math.abs(cell.high)) * 1e-12;
  const seen = new Set<string>();
  const found: One[] = [];
  for (const e of (wire.series ?? []).flatMap((s) => s.slots ?? []).flatMap((s) => s.exemplars ?? [])) {
    const value = Number(e.value ?? 0);
    const key = `${e.profileId}|${e.spanId ?? ""}|${value}`;
    if (!e.profileId || seen.has(key) || value < cell.low - slack || value > cell.high + slack) continue;
    seen.add(key);
    found.push({ id: e.profileId, span: e.spanId ?? "", trace: e.traceId ?? "", timeMS: Number(e.timestamp), value, labels: toLabels(e.labels) });
  }
  return found.sort((a, b) => b.value - a.value || a.timeMS - b.timeMS);
}

const NUMBER = "(-?[\\d.]+(?:e[+-]?\\d+)?)";
const CELL = new RegExp(`^(\\d{1,15})~(\\d{1,15})~${NUMBER}~${NUMBER}$`);

export function parseCell(text: string | null): Cell | null {
  const m = CELL.exec(text ?? "");
  if (!m) return null;
  const [start, end, low, high] = m.slice(1).map(Number) as [number, number, number, number];
  return start < end && low <= high ? { start, end, low, high } : null;
}

export const formatCell = (c: Cell): string => [c.start, c.end, c.low, c.high].join("~");
