// Rules and alerts, as /api/v1/rules and /api/v1/alerts send them: filtered and counted.
import { formatDuration } from "./duration.ts";
import type { Labels } from "./labels.ts";

export interface Alert { labels: Labels; annotations: Labels; state: string; activeAt?: string; value: string; keepFiringSince?: string }

export interface Rule {
  name: string; query: string; health: string; type: "alerting" | "recording"; labels?: Labels | null; lastError?: string;
  evaluationTime?: number; lastEvaluation?: string;
  state?: string; duration?: number; keepFiringFor?: number; annotations?: Labels | null; alerts?: Alert[] | null;
}

export interface Group { name: string; file: string; interval: number; limit?: number; evaluationTime?: number; lastEvaluation?: string; rules: Rule[] }

export type RuleState = "any" | "firing" | "pending" | "inactive" | "bad";

const wordsOf = (text: string): string[] => text.toLowerCase().split(/\s+/).filter((w) => w !== "");

const textOf = (labels: Labels | null | undefined): string => Object.entries(labels ?? {}).map(([k, v]) => `${k}=${v}`).join(" ");

/** Groups with the rules that have all words and the state; empty groups are left out. */
export function filterRules(groups: readonly Group[], text: string, state: RuleState, kind: "" | "alerting" | "recording" = ""): Group[] {
  const words = wordsOf(text);
  return groups
    .map((g) => ({ ...g, rules: g.rules.filter((r) => (kind === "" || r.type === kind) && hasState(r, state) && words.every((w) => `${g.name} ${g.file} ${r.name} ${r.query} ${textOf(r.labels)} ${(r.alerts ?? []).map((a) => textOf(a.labels)).join(" ")}`.toLowerCase().includes(w))) }))
    .filter((g) => g.rules.length > 0);
}

function hasState(r: Rule, state: RuleState): boolean {
  if (state === "any") return true;
  return state === "bad" ? r.health === "err" : r.state === state;
}

export interface RuleCounts { all: number; firing: number; pending: number; inactive: number; bad: number }

export function countRules(groups: readonly Group[], kind: "" | "alerting" | "recording" = ""): RuleCounts {
  const rules = groups.flatMap((g) => g.rules).filter((r) => kind === "" || r.type === kind);
  const count = (s: RuleState) => rules.filter((r) => hasState(r, s)).length;
  return { all: rules.length, firing: count("firing"), pending: count("pending"), inactive: count("inactive"), bad: count("bad") };
}

/** The search of the page that tests an alert over the past. */
export const backtestOf = (r: Rule): string => `?${new URLSearchParams({ expr: r.query, ...(r.duration ? { for: formatDuration(r.duration * 1000) } : {}), ...(r.keepFiringFor ? { keep: formatDuration(r.keepFiringFor * 1000) } : {}), rule: r.name })}`;

/** An expression that shows when an alert was pending and firing. */
export const historyOf = (name: string): string => `ALERTS{alertname="${name.replace(/[\\"]/g, "\\$&")}"}`;
