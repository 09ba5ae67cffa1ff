// Start, end and step of a graph's query.

/** Steps a person would choose, in milliseconds. */
const NICE: readonly number[] = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
].map((s) => s * 1000);

/** Prometheus refuses more steps than this in one query. */
export const POINTS_MAX = 11_000;

/** A step that puts a point on about every third pixel: finer is not seen, coarser looks angular. */
export function autoStep(rangeMS: number, widthPX: number): number {
  const points = Math.min(Math.max(widthPX / 3, 100), 600);
  const raw = rangeMS / points;
  return NICE.find((s) => s >= raw) ?? Math.ceil(raw / 604_800_000) * 604_800_000;
}

export interface Grid { start: number; end: number; step: number }

/**
 * The grid of a range query, aligned to multiples of the step. Aligned, because a graph that refreshes itself must not
 * evaluate at other instants each time: lines would wobble, and a caching query frontend could reuse nothing.
 */
export function grid(endMS: number, rangeMS: number, stepMS: number): Grid {
  const end = Math.floor(endMS / stepMS) * stepMS;
  const start = Math.ceil((endMS - rangeMS) / stepMS) * stepMS;
  return { start: Math.min(start, end), end, step: stepMS };
}

/** How many points the grid has. */
export function gridLength(g: Grid): number {
  return Math.floor((g.end - g.start) / g.step) + 1;
}
