// The server as components see it.
import { createContext } from "preact";
import { useCallback, useContext, useEffect, useState } from "preact/hooks";
import { isAbort, Server, type Answer, type Health, type Params } from "./client.ts";

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
  /** The last good answer; it stays while a newer one is awaited, so that nothing flickers. */
  answer: Answer<T> | null;
  /** The parameters that `answer` is the answer to. */
  asked: Q;
  error: Error | null;
  loading: boolean;
  reload: () => void;
}

/**
 * Asks when the path or a parameter changes, when the server comes back, and on reload. A question that is no longer
 * wanted is cancelled. A null path asks nothing.
 */
export function useAPI<T>(path: string | null, params: Params = {}, tick: unknown = 0): Loaded<T> {
  return useAsked<T, Params>(path, params, tick, (server, p, asked, signal) => server.get<T>(p, asked, signal));
}

/** The same for a method of the profile API. */
export function useCall<T>(method: string | null, message: object = {}, tick: unknown = 0): Loaded<T, object> {
  return useAsked<T, object>(method && `querier.v1.QuerierService/${method}`, message, tick, (server, m, asked, signal) => server.call<T>(m, asked, signal));
}

type Ask<T, Q> = (server: Server, path: string, asked: Q, signal: AbortSignal) => Promise<Answer<T>>;

function useAsked<T, Q extends object>(path: string | null, params: Q, tick: unknown, ask: Ask<T, Q>): Loaded<T, Q> {
  const server = useServer();
  const { epoch } = useHealth();
  const [reloads, setReloads] = useState(0);
  const [state, setState] = useState<Omit<Loaded<T, Q>, "reload">>({ answer: null, asked: {} as Q, error: null, loading: path !== null });
  const key = JSON.stringify(params);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    setState((s) => ({ ...s, loading: true }));
    const asked = JSON.parse(key) as Q;
    ask(server, path, asked, stop.signal).then(
      (answer) => setState({ answer, asked, error: null, loading: false }),
      (error: Error) => {
        if (!isAbort(error)) setState((s) => ({ ...s, error, loading: false }));
      },
    );
    return () => stop.abort();
  }, [server, path, key, tick, epoch, reloads]);
  const reload = useCallback(() => setReloads((n) => n + 1), []);
  return { ...state, reload };
}
