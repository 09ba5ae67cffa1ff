// What a visitor without a query sees: a real graph of something this server has, at once.
import { useEffect, useState } from "preact/hooks";
import { useAPI } from "../api/hooks.ts";
import type { TSDBStatus } from "../api/types.ts";
import { chooseExamples, firstRange, type Example } from "../lib/examples.ts";
import { DEFAULT_RANGE_MS, emptyState, type QueryState } from "../lib/urlstate.ts";

const RETRY_MS = 2000;
const REFRESH_MS = 5000;

export interface Intro {
  examples: readonly Example[];
  /** The state to show, or null until it is known. */
  state: QueryState | null;
  /** The server answers, and has not one series yet. */
  waiting: boolean;
}

/** With `on` false only the examples are looked up. */
export function useIntro(on: boolean): Intro {
  const [tries, setTries] = useState(0);
  const names = useAPI<string[]>("label/__name__/values", {}, tries);
  const tsdb = useAPI<TSDBStatus>(on ? "status/tsdb" : null, { limit: 1 });
  const [state, setState] = useState<QueryState | null>(null);
  const list = names.answer?.data;
  const empty = list !== undefined && list.length === 0;
  useEffect(() => {
    if (!empty) return undefined;
    const timer = setTimeout(() => setTries((n) => n + 1), RETRY_MS);
    return () => clearTimeout(timer);
  }, [empty, tries, names.answer]);
  const examples = chooseExamples(list ?? []);
  const settled = tsdb.answer !== null || tsdb.error !== null;
  useEffect(() => {
    // Chosen once: a default that changes under the reader's eyes would be worse than one that is a minute old.
    const first = examples[0];
    if (on && state === null && settled && first) {
      setState({ ...emptyState(), panels: [{ expr: first.expr, tab: "graph", stacked: false }], rangeMS: rangeFor(tsdb.answer?.data), refreshMS: REFRESH_MS });
    }
  }, [on, state, settled, list]);
  return { examples, state: on ? state : null, waiting: empty };
}

function rangeFor(status: TSDBStatus | undefined): number {
  const min = status?.headStats.minTime;
  // An empty head says so with the largest number there is.
  return min === undefined || min <= 0 || min > Date.now() ? DEFAULT_RANGE_MS : firstRange(Date.now() - min);
}
