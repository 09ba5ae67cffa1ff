// The meaning of a profile type's values over time: levels are averaged, amounts are divided by the time.
import { formatDuration } from "./duration.ts";
import { formatLong, formatShort, formatTicks } from "./format.ts";
import type { ProfileType } from "./profiles.ts";
import { formatUnit, formatUnitTicks } from "./units.ts";

export interface Figures {
  /** Whether profiles of one step are averaged: their sum would grow with the step. */
  average: boolean;
  /** By what a step's value is multiplied. */
  factor: number;
  /** For the value axis. */
  title: string;
  long: (v: number) => string;
  ticks: (t: readonly number[]) => string[];
}

const isLevel = (t: ProfileType): boolean => /^inuse_/.test(t.sampleType) || /^goroutines?$/.test(t.name) || /^goroutines?$/.test(t.sampleType);

export function figuresOf(t: ProfileType, stepMS: number): Figures {
  const seconds = stepMS / 1000;
  // The title names the step: a longer step makes the line flatter.
  const each = `, mean of each ${formatDuration(stepMS)}`;
  const unit = t.sampleUnit;
  if (isLevel(t)) {
    return { average: true, factor: 1, title: `mean of the profiles of each ${formatDuration(stepMS)}`, long: (v) => formatUnit(v, unit), ticks: (s) => formatUnitTicks(s, unit) };
  }
  if (unit === "nanoseconds") {
    const cpu = t.sampleType === "cpu";
    const word = cpu ? "cores" : "seconds per second";
    return { average: false, factor: 1 / (1e9 * seconds), title: word + each, long: (v) => `${formatLong(Number(v.toPrecision(6)))} ${cpu ? "cores" : "s/s"}`, ticks: (s) => formatTicks(s) };
  }
  if (unit === "bytes") return { average: false, factor: 1 / seconds, title: `bytes per second${each}`, long: (v) => `${formatUnit(v, unit)}/s`, ticks: (s) => formatUnitTicks(s, unit).map((x) => (x === "0" ? x : `${x}/s`)) };
  return { average: false, factor: 1 / seconds, title: `per second${each}`, long: (v) => `${formatShort(v)}/s`, ticks: (s) => formatTicks(s) };
}
