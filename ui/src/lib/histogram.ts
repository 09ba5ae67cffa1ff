// Converts native histograms from the JSON of the API for drawing.
import { parseSample } from "./format.ts";
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
