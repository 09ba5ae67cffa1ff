// The cost of each service over a range, computed from the profile API's series by service.
import { toLabels, type WireSeries } from "./profiles.ts";
import { gridLength, type Grid } from "./step.ts";

export interface Service {
  /** "" is of profiles that name none. */
  name: string;
  /** By step of the grid, NaN where nothing was measured. */
  values: Float64Array;
  /** What was spent in the range; of a level, such as memory in use, its mean. */
  total: number;
}

/** The largest first. */
export function servicesOf(series: readonly WireSeries[], g: Grid, average: boolean): Service[] {
  const n = gridLength(g);
  return series.map((s): Service => {
    const values = new Float64Array(n).fill(NaN);
    let [sum, count] = [0, 0];
    for (const p of s.points ?? []) {
      const at = Math.round((Number(p.timestamp) - g.start) / g.step);
      if (at < 0 || at >= n) continue;
      values[at] = p.value ?? 0;
      sum += p.value ?? 0;
      count++;
    }
    return { name: toLabels(s.labels)["service_name"] ?? "", values, total: average && count > 0 ? sum / count : sum };
  }).sort((a, b) => b.total - a.total || (a.name < b.name ? -1 : 1));
}

/**
 * The course of values as the path of an area in a box: gaps stay gaps. All of a list share one scale only where `max` is
 * the same for all.
 */
export function areaPath(values: Float64Array, max: number, width: number, height: number): string {
  if (!(max > 0)) return "";
  const dx = values.length > 1 ? width / (values.length - 1) : width;
  const round = (v: number) => String(Math.round(v * 10) / 10);
  let path = "";
  for (let i = 0; i < values.length; i++) {
    if (Number.isNaN(values[i]!)) continue;
    let end = i;
    while (end + 1 < values.length && !Number.isNaN(values[end + 1]!)) end++;
    // A value between two gaps is as wide as half a step to both sides.
    const [left, right] = end > i ? [i * dx, end * dx] : [Math.max(0, (i - 0.5) * dx), Math.min(width, (i + 0.5) * dx)];
    path += `M${round(left)} ${height}`;
    if (end === i) path += `V${round(height * (1 - values[i]! / max))}H${round(right)}`;
    else for (let k = i; k <= end; k++) path += `L${round(k * dx)} ${round(height * (1 - Math.max(0, values[k]!) / max))}`;
    path += `L${round(right)} ${height}Z`;
    i = end;
  }
  return path;
}
