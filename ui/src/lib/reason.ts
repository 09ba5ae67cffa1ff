// Finds the labels that a metric's series and the profiles of the same time share.
import { escapeValue, type Labels } from "./labels.ts";

/** Metrics name their program by job, profiles by service_name. */
const SERVICE_OF = ["service_name", "service", "job", "app"];
const NEVER = new Set(["__name__", "le", "quantile", "code", "status", "method", "(earlier)"]);

export interface Narrowed { service: string; matchers: string }

/**
 * What of the labels that all lines have in common narrows profiles. `values` are those that profiles have, by label;
 * a label that profiles lack, or another value of it, narrows nothing.
 */
export function narrow(common: Labels, values: Readonly<Record<string, readonly string[]>>): Narrowed {
  const services = values["service_name"] ?? [];
  const by = SERVICE_OF.find((name) => common[name] !== undefined && services.includes(common[name]));
  const service = by === undefined ? "" : common[by]!;
  const matchers = Object.entries(common)
    .filter(([k, v]) => !NEVER.has(k) && k !== by && k !== "service_name" && (values[k] ?? []).includes(v))
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([k, v]) => `${k}="${escapeValue(v)}"`);
  return { service, matchers: matchers.join(", ") };
}

/** Labels worth a look-up of their values in profiles. */
export const candidates = (common: Labels, names: readonly string[]): string[] => names.filter((n) => common[n] !== undefined && !NEVER.has(n));

/** The range before a range, of the same length. */
export function before(range: { start: number; end: number }): { start: number; end: number } {
  return { start: range.start - (range.end - range.start), end: range.start };
}
