// Components that are loaded when they are first shown, so that they do not delay the first graph.
import type { ComponentChildren, ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Notice } from "./small.tsx";

/** While the code loads nothing is shown; a server that was upgraded meanwhile no longer has it, and a reload does. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>, meanwhile: ComponentChildren = <div class="waiting" />): ComponentType<P> {
  let loaded: ComponentType<P> | null = null;
  return function Lazy(props: P) {
    const [, redraw] = useState(0);
    const [failed, setFailed] = useState(false);
    useEffect(() => {
      if (loaded) return;
      load().then((c) => { loaded = c; redraw((n) => n + 1); }, () => setFailed(true));
    }, []);
    if (failed) {
      return (
        <Notice kind="error">
          <strong>Part of this page failed to load</strong><span>The server may have been upgraded. Load the page again.</span>
          <button type="button" class="button retry" onClick={() => location.reload()}>Reload</button>
        </Notice>
      );
    }
    const Loaded = loaded as ComponentType<object> | null;
    return Loaded ? <Loaded {...props} /> : <>{meanwhile}</>;
  };
}
