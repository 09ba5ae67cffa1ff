// Converts native histograms from the JSON of the API for drawing.
import { parseSample } from "./format.ts";
import { seriesText, type Labels } from "./labels.ts";
import type { HistogramValue } from "./matrix.ts";

export interface Bar { lower: number; upper: number; count: number; text: string; /** share of the highest bar, 0 to 1 */ height: number }

export interface HistogramView { count: number; sum: number; mean: number; bars: Bar[] }

/** The API's boundary rule: which ends are inside: 0 (a,b], 1 [a,b), 2 (a,b), 3 [a,b]. */
function interval(rule: number, lower: string, upper: string): string {
  return `${rule === 1 || rule === 3 ? "[" : "("}${lower}, ${upper}${rule === 0 || rule === 3 ? "]" : ")"}`;
}

export function viewHistogram(h: HistogramValue): HistogramView {
  const buckets = h.buckets ?? [];
  const counts = buckets.map((b) => parseSample(b[3]));
  const top = Math.max(0, ...counts.filter(Number.isFinite));
  const bars = buckets.map(([rule, lower, upper], i): Bar => ({
    lower: parseSample(lower),
    upper: parseSample(upper),
    count: counts[i]!,
    text: interval(rule, lower, upper),
    height: top > 0 ? counts[i]! / top : 0,
  }));
  const [count, sum] = [parseSample(h.count), parseSample(h.sum)];
  return { count, sum, mean: count === 0 ? NaN : sum / count, bars };
}

/** A bar and its place, from 0 to 1 in both directions. */
export interface Placed { bar: Bar; x0: number; x1: number; height: number }

export interface BarChart { placed: Placed[]; ticks: { at: number; value: number }[] }

/** Ticks closer than this share of the width would overlap. */
const TICK_GAP = 0.13;

/**
 * Places the bars on an axis of values. On an exponential axis the height of a bar is its count. On a linear axis it is the
 * count divided by the width of the bar, so that areas are counts. A bucket with an infinite bound gets the mean width of the
 * other buckets.
 */
export function placeBars(bars: readonly Bar[], linear: boolean): BarChart {
  const bounds = bars.flatMap((b) => [b.lower, b.upper]).filter(Number.isFinite);
  const least = bounds.reduce((m, v) => (v !== 0 && Math.abs(v) < m ? Math.abs(v) : m), Infinity);
  // Logarithmic on both sides of zero, and linear up to the smallest bound.
  const scale = (v: number): number => (linear || least === Infinity ? v : Math.abs(v) <= least ? v / least : Math.sign(v) * (1 + Math.log(Math.abs(v) / least)));
  const widths = bars.filter((b) => Number.isFinite(b.lower) && Number.isFinite(b.upper)).map((b) => scale(b.upper) - scale(b.lower));
  const mean = widths.length > 0 ? widths.reduce((sum, w) => sum + w, 0) / widths.length || 1 : 1;
  const spans = bars.map((b): [number, number] => {
    if (!Number.isFinite(b.lower) && !Number.isFinite(b.upper)) return [0, mean];
    if (!Number.isFinite(b.lower)) return [scale(b.upper) - mean, scale(b.upper)];
    return [scale(b.lower), Number.isFinite(b.upper) ? scale(b.upper) : scale(b.lower) + mean];
  });
  const [from, to] = [Math.min(...spans.map((s) => s[0])), Math.max(...spans.map((s) => s[1]))];
  const at = (x: number): number => (to > from ? (x - from) / (to - from) : 0);
  const heights = bars.map((b, i) => (linear ? b.count / Math.max(spans[i]![1] - spans[i]![0], Number.MIN_VALUE) : b.count)).map((h) => (Number.isFinite(h) && h > 0 ? h : 0));
  const top = Math.max(...heights, Number.MIN_VALUE);
  const ticks: { at: number; value: number }[] = [];
  for (const value of [...new Set(bounds)].sort((a, b) => a - b)) {
    const x = at(scale(value));
    if (ticks.length === 0 || x - ticks[ticks.length - 1]!.at >= TICK_GAP) ticks.push({ at: x, value });
  }
  return { placed: bars.map((bar, i) => ({ bar, x0: at(spans[i]![0]), x1: at(spans[i]![1]), height: heights[i]! / top })), ticks };
}

export interface ClassicHistogram { labels: Labels; view: HistogramView }

/** Classic histograms among the samples of an instant: series that differ only in le. sum and mean are NaN, because the sum is another series. */
export function classicHistograms(samples: readonly { metric: Labels; value?: [number, string] }[]): ClassicHistogram[] {
  const groups = new Map<string, { labels: Labels; buckets: [number, number][] }>();
  for (const s of samples) {
    const { le, ...labels } = s.metric;
    const upper = le === undefined ? NaN : parseSample(le);
    const count = parseSample(s.value?.[1] ?? "NaN");
    if (Number.isNaN(upper) || Number.isNaN(count)) continue;
    const key = seriesText(labels);
    const g = groups.get(key);
    if (g) g.buckets.push([upper, count]);
    else groups.set(key, { labels, buckets: [[upper, count]] });
  }
  return [...groups.values()].filter((g) => g.buckets.length > 1).map(({ labels, buckets }) => ({ labels, view: viewCumulative(buckets) }));
}

function viewCumulative(buckets: [number, number][]): HistogramView {
  const sorted = buckets.sort(([a], [b]) => a - b);
  const text = (v: number): string => (v === Infinity ? "+Inf" : v === -Infinity ? "-Inf" : String(v));
  const bars = sorted.map(([upper, total], i): Bar => {
    const [below, had] = i > 0 ? sorted[i - 1]! : [upper > 0 ? 0 : -Infinity, 0];
    // Scrapes are not atomic: a bucket may be behind the one below it for a short time.
    return { lower: below, upper, count: Math.max(0, total - had), text: interval(0, text(below), text(upper)), height: 0 };
  });
  const top = Math.max(...bars.map((b) => b.count));
  return { count: sorted[sorted.length - 1]![1], sum: NaN, mean: NaN, bars: bars.map((b) => ({ ...b, height: top > 0 ? b.count / top : 0 })) };
}
