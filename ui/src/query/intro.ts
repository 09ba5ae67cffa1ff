// What a visitor without a query sees: a real graph of something this server has, at once.
import { useEffect, useState } from "preact/hooks";
import { has, useAPI, useFeatures } from "../api/hooks.ts";
import type { TSDBStatus } from "../api/types.ts";
import { chooseExamples, EXAMPLE_NAMES, firstExample, firstRange, type Example } from "../lib/examples.ts";
import { DEFAULT_RANGE_MS, emptyPanel, emptyState, type QueryState } from "../lib/urlstate.ts";

/** While a server has no data it is requested again, less and less often. */
const RETRY_MS = 2000;
const RETRY_MAX_MS = 60_000;
/** Metrics that nothing has written for longer are no examples. */
const LOOK_BACK_MS = 3_600_000;
const NAMES_MAX = 200;
const REFRESH_MS = 5000;

export interface Intro {
  examples: readonly Example[];
  /** The state to show, or null until it is known. */
  state: QueryState | null;
  /** The server responds and has no series yet. */
  waiting: boolean;
}

/** What is known of the server when the first example is chosen; the choice then stands. */
interface Start { expr: string; /** When its data begins, or null where the server does not report it. */ bornMS: number | null }

/** With `on` false, and no empty panel that `examples` is for, nothing is requested. */
export function useIntro(on: boolean, wanted: boolean, now: number, window: string | null): Intro {
  const [tries, setTries] = useState(0);
  const [since] = useState(() => Math.floor((Date.now() - LOOK_BACK_MS) / 1000));
  const features = useFeatures();
  const names = useAPI<string[]>(wanted ? "label/__name__/values" : null, { "match[]": EXAMPLE_NAMES, start: since, limit: NAMES_MAX }, tries);
  const tsdb = useAPI<TSDBStatus>(on && has(features, "tsdb") ? "status/tsdb" : null, { limit: 1 }, tries);
  const [start, setStart] = useState<Start | null>(null);
  const list = names.result?.data;
  const empty = list !== undefined && list.length === 0;
  useEffect(() => {
    if (!empty) return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const later = () => { timer = setTimeout(() => { if (document.visibilityState === "visible") setTries((n) => n + 1); else later(); }, Math.min(RETRY_MS * 2 ** tries, RETRY_MAX_MS)); };
    later();
    return () => clearTimeout(timer);
  }, [empty, names.result]);
  const examples = window === null ? [] : chooseExamples(list ?? [], window);
  const settled = window !== null && (!has(features, "tsdb") || (!tsdb.loading && (tsdb.result !== null || tsdb.error !== null)));
  useEffect(() => {
    if (!on || start !== null || !settled || names.loading) return;
    const bornMS = beginning(tsdb.result?.data);
    const first = firstExample(examples, bornMS === null ? Infinity : Date.now() - bornMS);
    if (first) setStart({ expr: first.expr, bornMS });
  }, [on, start, settled, names.loading, list, window]);
  return { examples, state: on && start ? stateOf(start, now) : null, waiting: empty && tsdb.result?.data.headStats.numSeries === 0 };
}

/** The range grows with the data until the visitor takes over. */
function stateOf({ expr, bornMS }: Start, now: number): QueryState {
  const rangeMS = bornMS === null ? DEFAULT_RANGE_MS : firstRange(now - bornMS);
  return { ...emptyState(), panels: [{ ...emptyPanel(), expr }], rangeMS, refreshMS: REFRESH_MS };
}

/** When the oldest sample was taken. An empty head reports the largest number there is. */
function beginning(status: TSDBStatus | undefined): number | null {
  const min = status?.headStats.minTime;
  return min === undefined || min <= 0 || min > Date.now() ? null : min;
}
