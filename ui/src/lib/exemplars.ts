// Exemplars of metrics as dots of a graph: an exemplar is a single measured value with labels that identify its request.
import { parseSample } from "./format.ts";
import type { Labels } from "./labels.ts";
import type { Dot } from "./profiles.ts";

export interface ExemplarSeries { seriesLabels: Labels; exemplars: { labels: Labels; value: string; timestamp: number }[] }

/** More dots than this hide each other; the newest stay. */
export const EXEMPLARS_MAX = 400;

/** The label under which ferula's own histograms name the profile that was being taken. */
export const PROFILE_LABEL = "profile_id";

/** Dots with the colour of the line they belong to: the first whose labels the exemplar's series has. */
export function exemplarDots(data: readonly ExemplarSeries[], lines: readonly Labels[]): Dot[] {
  const dots = data.flatMap(({ seriesLabels, exemplars }) => {
    const series = Math.max(0, lines.findIndex((l) => belongs(seriesLabels, l)));
    return exemplars.map((e): Dot => ({ series, timeMS: e.timestamp * 1000, value: parseSample(e.value), labels: { ...seriesLabels, ...e.labels } }));
  });
  return dots.filter((d) => Number.isFinite(d.value)).sort((a, b) => a.timeMS - b.timeMS).slice(-EXEMPLARS_MAX);
}

/** Functions and aggregations drop labels and never change those that stay. */
const belongs = (series: Labels, line: Labels): boolean =>
  Object.entries(line).every(([k, v]) => k === "__name__" || series[k] === v);
