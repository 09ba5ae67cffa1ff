// Hooks by which components send requests to the server.
import { createContext } from "preact";
import { useCallback, useContext, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { APIError, Server, UnavailableError, type APIResult, type Health, type Params } from "./client.ts";
import type { QueryData } from "./types.ts";

export const ServerContext = createContext<Server>(new Server("/"));

export const useServer = (): Server => useContext(ServerContext);

/** Health and epoch, kept current. */
export function useHealth(): { health: Health; epoch: number } {
  const server = useServer();
  const [, redraw] = useState(0);
  useEffect(() => server.subscribe(() => redraw((n) => n + 1)), [server]);
  return { health: server.health, epoch: server.epoch };
}

export interface Loaded<T, Q = Params> {
  /** The last good result. It stays while a newer one is loading, so that nothing flickers. */
  result: APIResult<T> | null;
  /** The parameters that `result` belongs to. */
  requested: Q;
  error: Error | null;
  loading: boolean;
  /** When the running request was sent, in ms since 1970. */
  sinceMS: number;
  reload: () => void;
  /** Ends the running request. */
  cancel: () => void;
}

/** What a request that its user has cancelled ends with. */
const CANCELLED = new APIError("You cancelled it before a response arrived.", "canceled", 0);

/** A request that took longer than this before it failed is not sent again without the user's word: it may be what is wrong. */
const REPEAT_MS_MAX = 5000;

/**
 * Sends a request when the path or a parameter changes and on reload; also when the server comes back, if the last
 * request failed quickly because the server was away. A request that is no longer wanted is cancelled. A null path sends
 * nothing.
 */
export function useAPI<T>(path: string | null, params: Params = {}, tick: unknown = 0): Loaded<T> {
  return useRequest<T, Params>(path, params, tick, (server, p, requested, signal) => server.get<T>(p, requested, signal));
}

/** The same for a query: the response of a range query is scanned while it arrives. */
export function useQueryAPI(path: "query" | "query_range" | null, params: Params, tick: unknown): Loaded<QueryData> {
  return useRequest<QueryData, Params>(path, params, tick, (server, p, requested, signal) => (p === "query_range" ? server.range(requested, signal) : server.get(p, requested, signal)));
}

/** The same for a method of the profile API. */
export function useCall<T>(method: string | null, message: object = {}, tick: unknown = 0): Loaded<T, object> {
  return useRequest<T, object>(method && `querier.v1.QuerierService/${method}`, message, tick, (server, m, requested, signal) => server.call<T>(m, requested, signal));
}

type Send<T, Q> = (server: Server, path: string, requested: Q, signal: AbortSignal) => Promise<APIResult<T>>;

function useRequest<T, Q extends object>(path: string | null, params: Q, tick: unknown, send: Send<T, Q>): Loaded<T, Q> {
  const server = useServer();
  const { epoch } = useHealth();
  const [reloads, setReloads] = useState(0);
  const [state, setState] = useState<Omit<Loaded<T, Q>, "reload" | "cancel">>({ result: null, requested: {} as Q, error: null, loading: path !== null, sinceMS: 0 });
  const running = useRef<AbortController | null>(null);
  const key = JSON.stringify(params);
  const failure = useRef<Error | null>(null);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = running.current = new AbortController();
    failure.current = null;
    setState((s) => ({ ...s, loading: true, sinceMS: Date.now() }));
    const requested = JSON.parse(key) as Q;
    send(server, path, requested, stop.signal).then(
      (result) => setState({ result, requested, error: null, loading: false, sinceMS: 0 }),
      (caught: Error) => {
        const byHand = stop.signal.reason === CANCELLED;
        if (stop.signal.aborted && !byHand) return;
        const error = byHand ? CANCELLED : caught;
        failure.current = error;
        setState((s) => ({ ...s, error, loading: false }));
      },
    );
    return () => stop.abort();
  }, [server, path, key, tick, reloads]);
  const reload = useCallback(() => setReloads((n) => n + 1), []);
  useEffect(() => {
    const error = failure.current;
    if (error instanceof UnavailableError && error.ms <= REPEAT_MS_MAX) reload();
  }, [epoch]);
  const cancel = useCallback(() => running.current?.abort(CANCELLED), []);
  return { ...state, reload, cancel };
}

/**
 * Calls `refresh` every `everyMS` while the page is visible. 0 switches it off. A tick that finds a request running is
 * left out, so that a slow response is never cut off by the next refresh; after failures ticks pause.
 */
export function useAutoRefresh(everyMS: number, refresh: () => void): void {
  const server = useServer();
  const latest = useRef(refresh);
  latest.current = refresh;
  useEffect(() => {
    if (everyMS <= 0) return undefined;
    const timer = setInterval(() => {
      if (document.visibilityState === "visible" && server.refreshGate.tick()) latest.current();
    }, Math.max(everyMS, 1000));
    return () => clearInterval(timer);
  }, [server, everyMS]);
}

/** What the server has, by /api/v1/status/features; another program, or an older one, is believed to have everything. */
export type Features = Readonly<Record<string, boolean>>;

export const FeaturesContext = createContext<Features | null>(null);

/** Null until the server has responded. */
export const useFeatures = (): Features | null => useContext(FeaturesContext);

export function useLoadedFeatures(): Features | null {
  const { result, error } = useAPI<{ ferula?: Record<string, boolean> }>("status/features");
  return useMemo(() => (result ? result.data.ferula ?? {} : error ? {} : null), [result, error]);
}

/** Whether a part is there: false only where the server denies it. */
export const has = (features: Features | null, name: string): boolean => features?.[name] !== false;
