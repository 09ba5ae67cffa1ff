// What the server wants its users to know, such as a configuration that it refused. It sends them as they come; while the page is
// hidden, and for a while after a failure, nothing is requested.
import { useEffect, useState } from "preact/hooks";
import { useServer } from "./api/hooks.ts";
import { applyNotice, type ServerNotice } from "./lib/notices.ts";

const RETRY_MS = 30_000;

export function Notices() {
  const server = useServer();
  const [list, setList] = useState<readonly ServerNotice[]>([]);
  useEffect(() => {
    let source: EventSource | null = null;
    let timer = 0;
    const close = () => { clearTimeout(timer); source?.close(); source = null; };
    const open = () => {
      close();
      if (document.visibilityState !== "visible") return;
      source = new EventSource(`${server.base}api/v1/notifications/live`);
      // The server sends all that are active first.
      source.onopen = () => setList([]);
      source.onmessage = (e: MessageEvent<string>) => setList((l) => applyNotice(l, e.data));
      // A browser would try again every few seconds.
      source.onerror = () => { close(); timer = window.setTimeout(open, RETRY_MS); };
    };
    open();
    document.addEventListener("visibilitychange", open);
    return () => { close(); document.removeEventListener("visibilitychange", open); };
  }, [server]);
  return <>{list.map((n) => <div class="banner" role="status" key={n.text}><strong>{n.text}</strong></div>)}</>;
}
