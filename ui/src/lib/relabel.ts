// The steps of relabelling, one for each rule: a description of the rule, and the labels that it changed.
import type { Labels } from "./labels.ts";

export interface Rule { source_labels?: string[]; separator?: string; regex?: string; modulus?: number; target_label?: string; replacement?: string; action?: string }

export interface RelabelStep { rule: Rule; output: Labels; keep: boolean }

export interface Change { name: string; /** null where the label was not there, or is gone. */ before: string | null; after: string | null }

/** A rule as its section of the configuration has it, without what is at its default. */
export function ruleText(r: Rule): string {
  const parts: string[] = [];
  if (r.source_labels?.length) parts.push(`source_labels: [${r.source_labels.join(", ")}]`);
  if (r.separator !== undefined && r.separator !== ";" && (r.source_labels?.length ?? 0) > 1) parts.push(`separator: ${JSON.stringify(r.separator)}`);
  if (r.regex !== undefined && r.regex !== "" && r.regex !== "(.*)") parts.push(`regex: ${r.regex}`);
  if (r.modulus) parts.push(`modulus: ${r.modulus}`);
  if (r.target_label) parts.push(`target_label: ${r.target_label}`);
  if (r.replacement !== undefined && r.replacement !== "$1") parts.push(`replacement: ${JSON.stringify(r.replacement)}`);
  return [`action: ${r.action ?? "replace"}`, ...parts].join("\n");
}

/** Of each step the labels that it has changed, by name. A step after the target was dropped changes nothing. */
export function changesOf(discovered: Labels, steps: readonly RelabelStep[]): Change[][] {
  let before = discovered;
  return steps.map(({ output, keep }) => {
    if (!keep) return [];
    const names = [...new Set([...Object.keys(before), ...Object.keys(output)])].sort();
    const changes = names.filter((n) => before[n] !== output[n]).map((name) => ({ name, before: before[name] ?? null, after: output[name] ?? null }));
    before = output;
    return changes;
  });
}
