// Notifications of the server, such as a refused configuration, received as a stream of events. While the page is
// hidden, and for some time after a failure, no request is sent.
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
