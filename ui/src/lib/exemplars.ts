// Exemplars of metrics as dots of a graph: an exemplar is a single measured value with labels that identify its request.
import { parseSample } from "./format.ts";
import type { Labels } from "./labels.ts";
import type { Dot } from "./profiles.ts";

export interface ExemplarSeries { seriesLabels: Labels; exemplars: { labels: Labels; value: string; timestamp: number }[] }

/** More dots than this hide each other; the newest stay. */
export const EXEMPLARS_MAX = 400;

/** Labels under which clients name the trace and the span of an exemplar, the usual ones first. */
const TRACE_LABELS = ["trace_id", "traceID", "TraceID", "traceId"];
const SPAN_LABELS = ["span_id", "spanID", "SpanID", "spanId"];

const firstOf = (labels: Labels, names: readonly string[]): string => labels[names.find((n) => labels[n] !== undefined) ?? ""] ?? "";

export const traceOf = (labels: Labels): string => firstOf(labels, TRACE_LABELS);

/** A span as the profile API knows it, 16 hexadecimal digits; "" where there is none. */
export function spanOf(labels: Labels): string {
  const span = firstOf(labels, SPAN_LABELS).toLowerCase();
  return /^[0-9a-f]{16}$/.test(span) ? span : "";
}

/** Whether a template can be used: the address of a page, with the name of a label between braces. */
export const isTraceTemplate = (template: string): boolean => /^https?:\/\/[^\s/{}]+(\/|$)/i.test(template) && /\{[A-Za-z_]\w*\}/.test(template);

/**
 * The address that a template gives for an exemplar: "https://tempo/trace/{trace_id}" with the value of the label, escaped.
 * {trace_id} and {span_id} also mean the other usual names of these labels. Null where a label is missing, or for another
 * scheme than http and https.
 */
export function traceLink(template: string, labels: Labels): string | null {
  if (!isTraceTemplate(template)) return null;
  let missing = false;
  const url = template.replace(/\{([A-Za-z_]\w*)\}/g, (_, name: string) => {
    const value = labels[name] ?? (name === "trace_id" ? traceOf(labels) : name === "span_id" ? firstOf(labels, SPAN_LABELS) : "");
    missing ||= value === "";
    return encodeURIComponent(value);
  });
  return missing ? null : url;
}

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
