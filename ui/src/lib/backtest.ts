// Rules over the past, as /api/v1/rules/backtest returns them, and what the page makes of its text. Times of the response are seconds.
import { formatDuration } from "./duration.ts";
import type { Labels } from "./labels.ts";

export interface Interval { state: "pending" | "firing"; start: number; end: number; value: string; open?: boolean }

export interface TestedAlert { labels: Labels; intervals: Interval[] }

export interface Notification { at: number; labels: Labels; annotations: Labels; startsAt: string; endsAt: string; resolved: boolean; resends: number }

export interface TestedRule {
  name: string; query: string; type: "alerting" | "recording"; for?: number; keepFiringFor?: number; truncated?: boolean;
  errors?: { count: number; firstAt: number; first: string };
  alerts?: TestedAlert[]; notifications?: Notification[];
  counts: { alerts?: number; firings?: number; notifications?: number; resends?: number; samples?: number };
}

export interface Backtest { start: number; end: number; groups: { name: string; interval: number; rules: TestedRule[] }[] }

/** A comparison with a number at the end of an expression: text = before + number. */
export interface Threshold { left: string; before: string; value: number }

const COMPARISON = /^([^]*?[^=!<>\s])(\s*(?:[=!]=|[<>]=?)\s*(?:bool\s+)?)([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*$/i;

/** Null where the expression does not end with a threshold. */
export function thresholdOf(expr: string): Threshold | null {
  const m = COMPARISON.exec(expr);
  return m ? { left: m[1]!.trim(), before: m[1]! + m[2]!, value: Number(m[3]) } : null;
}

/** What the graph shows: the values, and the threshold as a line. */
export function drawnExpr(expr: string): string {
  const t = thresholdOf(expr);
  return t ? `(${t.left}) or label_replace(vector(${t.value}), "threshold", "${t.value}", "", "")` : expr;
}

const indented = (text: string, by: string): string => text.replace(/^(?=.)/gm, by);

/** The rule file in a pasted text, which may be one rule or a list of rules; null where the text is an expression. */
export function ruleFile(text: string): string | null {
  if (/^\s*groups\s*:/m.test(text)) return text;
  const one = /^\s*(?:#.*\n\s*)*(?:alert|record)\s*:/.test(text);
  if (!one && !/^\s*(?:#.*\n\s*)*-\s+(?:alert|record|expr)\s*:/.test(text)) return null;
  const list = one ? `- ${indented(text.trim(), "  ").trimStart()}` : text;
  return `groups:\n- name: pasted\n  rules:\n${indented(list, "  ")}\n`;
}

/** Spans (ms) in which any alert was in a state, joined where they touch: what the graph is shaded with. */
export function spansOf(alerts: readonly TestedAlert[], state: Interval["state"], stepMS: number): [number, number][] {
  const all = alerts.flatMap((a) => a.intervals.filter((i) => i.state === state).map((i): [number, number] => [i.start * 1000, i.end * 1000]));
  all.sort((a, b) => a[0] - b[0]);
  const out: [number, number][] = [];
  for (const [from, to] of all) {
    const last = out.at(-1);
    if (last && from <= last[1] + stepMS) last[1] = Math.max(last[1], to);
    else out.push([from, to]);
  }
  return out;
}

/** Place and width of a span in a range, in percent; something is always seen. */
export function shareOf(from: number, to: number, start: number, end: number): { left: string; width: string } {
  const whole = Math.max(end - start, 1);
  const left = Math.max(0, Math.min(1, (from - start) / whole));
  return { left: `${(left * 100).toFixed(3)}%`, width: `${(Math.max(Math.min(1, (to - start) / whole) - left, 0.002) * 100).toFixed(3)}%` };
}

/** "10m" of 600 seconds, "" of none. */
export const spelled = (seconds: number | undefined): string => (seconds ? formatDuration(seconds * 1000) : "");
