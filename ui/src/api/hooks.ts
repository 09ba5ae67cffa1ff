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

export interface Loaded<T> {
  /** The last good answer; it stays while a newer one is awaited, so that nothing flickers. */
  answer: Answer<T> | null;
  /** The parameters that `answer` is the answer to. */
  asked: Params;
  error: Error | null;
  loading: boolean;
  reload: () => void;
}

/**
 * Asks when the path or a parameter changes, when the server comes back, and on reload. A question that is no longer
 * wanted is cancelled. A null path asks nothing.
 */
export function useAPI<T>(path: string | null, params: Params = {}, tick: unknown = 0): Loaded<T> {
  const server = useServer();
  const { epoch } = useHealth();
  const [reloads, setReloads] = useState(0);
  const [state, setState] = useState<Omit<Loaded<T>, "reload">>({ answer: null, asked: {}, error: null, loading: path !== null });
  const key = JSON.stringify(params);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    setState((s) => ({ ...s, loading: true }));
    const asked = JSON.parse(key) as Params;
    server.get<T>(path, asked, stop.signal).then(
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
