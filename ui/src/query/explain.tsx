// The tree of a query: each part with its own result, the labels that vary in it, and how the operands of an operator match.
import "../style/explain.css";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Params } from "../api/client.ts";
import { useAPI, useServer } from "../api/hooks.ts";
import type { InstantData } from "../api/types.ts";
import { cardinality, childrenOf, matchSides, textOf, titleOf, type Matching, type Node } from "../lib/ast.ts";
import { formatElapsed } from "../lib/duration.ts";
import { plural } from "../lib/format.ts";
import { seriesText, type Labels } from "../lib/labels.ts";
import { Failure, Progress } from "../parts/small.tsx";

interface Props { expr: string; params: Params; timeMS: number; onPick: (expr: string) => void }

type Outcome = { state: "running" } | { state: "failed"; message: string } | { state: "done"; sets: Labels[]; scalar: string | null; ms: number; cut: boolean };

/** A part with more series is counted up to here. */
const SERIES_MAX = 10_000;
const AT_ONCE = 3;
const PARTS_MAX = 60;
const LABELS_SHOWN = 6;

export function Explain({ expr, params, timeMS, onPick }: Props) {
  const tree = useAPI<Node>("parse_query", { query: expr });
  const root = tree.error ? null : tree.result?.data ?? null;
  const outcomes = useOutcomes(root, params, timeMS);
  return (
    <div class="explain">
      <Progress on={tree.loading && !root} />
      {tree.error && <Failure error={tree.error} onRetry={tree.reload} />}
      {root && <ul class="tree" aria-label="Parts of the query"><Part node={root} outcomes={outcomes} onPick={onPick} /></ul>}
    </div>
  );
}

function allParts(root: Node): string[] {
  const out = new Set<string>();
  const walk = (n: Node) => { if (runs(n)) out.add(textOf(n)); childrenOf(n).forEach(walk); };
  walk(root);
  return [...out].slice(0, PARTS_MAX);
}

/** Literals have no result worth a request. */
const runs = (n: Node): boolean => n.type !== "numberLiteral" && n.type !== "stringLiteral";

/** Runs every part at one instant, a few at a time, the smallest first. */
function useOutcomes(root: Node | null, params: Params, timeMS: number): ReadonlyMap<string, Outcome> {
  const server = useServer();
  const [outcomes, setOutcomes] = useState<ReadonlyMap<string, Outcome>>(new Map());
  const parts = useMemo(() => (root ? allParts(root).reverse() : []), [root]);
  const key = JSON.stringify(params);
  const at = Math.floor(timeMS / 1000);
  useEffect(() => {
    const stop = new AbortController();
    setOutcomes(new Map(parts.map((p) => [p, { state: "running" } as Outcome])));
    const put = (part: string, o: Outcome) => { if (!stop.signal.aborted) setOutcomes((m) => new Map(m).set(part, o)); };
    const queue = [...parts];
    const worker = async (): Promise<void> => {
      for (let part = queue.shift(); part !== undefined && !stop.signal.aborted; part = queue.shift()) {
        try {
          const r = await server.get<InstantData>("query", { ...(JSON.parse(key) as Params), query: part, time: at, limit: SERIES_MAX }, stop.signal);
          put(part, outcomeOf(r.data, r.ms));
        } catch (e) {
          put(part, { state: "failed", message: (e as Error).message });
        }
      }
    };
    for (let i = 0; i < AT_ONCE; i++) void worker();
    return () => stop.abort();
  }, [server, parts, key, at]);
  return outcomes;
}

function outcomeOf(data: InstantData, ms: number): Outcome {
  if (data.resultType === "vector" || data.resultType === "matrix") {
    return { state: "done", sets: data.result.map((s) => s.metric), scalar: null, ms, cut: data.result.length >= SERIES_MAX };
  }
  return { state: "done", sets: [], scalar: data.result[1], ms, cut: false };
}

interface PartProps { node: Node; outcomes: ReadonlyMap<string, Outcome>; onPick: (expr: string) => void }

function Part({ node, outcomes, onPick }: PartProps) {
  const children = childrenOf(node);
  const outcome = outcomes.get(textOf(node));
  return (
    <li>
      <div class="part">
        <button type="button" class="part-text" title={`Run ${textOf(node)} alone`} onClick={() => onPick(textOf(node))}><code>{titleOf(node)}</code></button>
        {outcome && <Figures outcome={outcome} />}
      </div>
      {node.type === "binaryExpr" && node.matching && <Sides matching={node.matching} left={outcomes.get(textOf(node.lhs))} right={outcomes.get(textOf(node.rhs))} set={/^(and|or|unless)$/i.test(node.op)} />}
      {children.length > 0 && <ul>{children.map((c, i) => <Part key={`${i}${textOf(c)}`} node={c} outcomes={outcomes} onPick={onPick} />)}</ul>}
    </li>
  );
}

function Figures({ outcome }: { outcome: Outcome }) {
  if (outcome.state === "running") return <span class="hint">…</span>;
  if (outcome.state === "failed") return <span class="target-error">{outcome.message}</span>;
  if (outcome.scalar !== null) return <span class="hint">{outcome.scalar} · {formatElapsed(outcome.ms)}</span>;
  const labels = cardinality(outcome.sets).filter((l) => l.values > 1 || outcome.sets.length === 1);
  return (
    <span class="hint">
      <b class={outcome.sets.length === 0 ? "bad" : ""}>{outcome.cut ? "at least " : ""}{plural(outcome.sets.length, "series", "series")}</b> · {formatElapsed(outcome.ms)}
      {outcome.sets.length > 1 && labels.length > 0 && <> · {labels.slice(0, LABELS_SHOWN).map((l) => `${l.name} ${l.values}`).join(", ")}{labels.length > LABELS_SHOWN && ` and ${labels.length - LABELS_SHOWN} more`}</>}
    </span>
  );
}

/** Why an operator returns what it does: how many series found a partner, and examples of those that did not. */
function Sides({ matching, left, right, set }: { matching: Matching; left: Outcome | undefined; right: Outcome | undefined; set: boolean }) {
  if (left?.state !== "done" || right?.state !== "done") return null;
  const r = matchSides(matching, left.sets, right.sets);
  const alone = (side: string, list: readonly Labels[]) => list.length > 0 && (
    <span> · {plural(list.length, "series", "series")} of the {side} without a partner, e.g. <code>{seriesText(list[0]!)}</code></span>
  );
  return (
    <p class="note sides">
      <b>{plural(r.groups, "matching group")}</b>{alone("left", r.leftOnly)}{alone("right", r.rightOnly)}
      {r.crowded > 0 && !set && <b class="bad"> · {plural(r.crowded, "group")} with several series on a side that may have one</b>}
    </p>
  );
}
