// The menu of a panel: format, duplicate, copy in several formats, download.
import { useState } from "preact/hooks";
import { useFeatures, useServer } from "../api/hooks.ts";
import type { InstantData } from "../api/types.ts";
import { absoluteState, exportURL, toCSV, toCurl, toGrafanaPanel, toRead } from "../lib/export.ts";
import { childrenOf, textOf, type Node } from "../lib/ast.ts";
import type { PanelState, QueryState } from "../lib/urlstate.ts";
import { followLink, saveBlob } from "../parts/save.ts";
import { copyText } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import type { PanelQuery } from "./panelquery.ts";

interface Props {
  panel: PanelState; state: QueryState; now: number; query: PanelQuery; text: string;
  close: () => void; onFormat: (text: string) => void; onDuplicate: () => void;
}

export function PanelMenu({ panel, state, now, query, text, close, onFormat, onDuplicate }: Props) {
  const server = useServer();
  const { zone } = usePrefs();
  const [message, setMessage] = useState("");
  const base = new URL(server.base, location.href).href;
  const copy = (what: string, body: string) => void copyText(body).then((ok) => setMessage(ok ? `Copied ${what}.` : "The browser does not let the page copy."));
  const send = <T,>(path: string, then: (v: T) => void) => {
    server.get<T>(path, { query: query.sent || text }, new AbortController().signal).then((r) => then(r.data), (e: Error) => setMessage(e.message));
  };
  const format = () => server.get<string>("format_query", { query: text }, new AbortController().signal).then((r) => { close(); onFormat(r.data); }, (e: Error) => setMessage(e.message));
  const link = () => {
    const search = absoluteState(state, now);
    copy("a link with absolute times", `${base}query${search}${search === "" ? "?" : "&"}zone=${zone}`);
  };
  // A link has no header of a tenant.
  const exports = useFeatures()?.["export"] === true && state.tenant === "";
  const raw = (format: string) => send<Node>("parse_query", (tree) => {
    const all = selectors(tree);
    if (all.length === 0) setMessage("The query selects no series.");
    else followLink(exportURL(base, all, (state.endMS ?? now) - state.rangeMS, state.endMS ?? now, format), `${name}.${format}`);
  });
  const read = () => send<Node>("parse_query", (tree) => {
    const [selector = null] = selectors(tree);
    if (selector === null) setMessage("The query selects no series.");
    else copy("the command", toRead(base, selector, (state.endMS ?? now) - state.rangeMS, state.endMS ?? now, server.tenantHeaders()));
  });
  const data = query.result?.data;
  /** A graph has its samples in their places only; a file gets them as the server writes them. */
  const save = async (type: string, ending: string, textOf: (d: InstantData) => string) => {
    if (!data) return;
    try {
      const d = data.resultType === "range" ? (await server.get<InstantData>(query.path, query.params, new AbortController().signal)).data : data;
      saveBlob(new Blob([textOf(d)], { type }), `${name}.${ending}`);
    } catch (e) {
      setMessage((e as Error).message);
    }
  };
  const name = fileName(panel.expr);
  return (
    <div class="menu" role="group" aria-label="Query actions">
      <button type="button" onClick={() => void format()}>Format the query</button>
      <button type="button" onClick={() => { close(); onDuplicate(); }}>Duplicate</button>
      <hr />
      <button type="button" onClick={link}>Copy link with absolute times</button>
      <button type="button" onClick={() => copy("the command", toCurl(`${base}api/v1/${query.path}`, query.params, server.tenantHeaders()))}>Copy as curl</button>
      <button type="button" onClick={read}>Copy as ferula read</button>
      <button type="button" onClick={() => copy("the panel", toGrafanaPanel({ expr: panel.expr, tab: panel.tab, stacked: panel.stacked, title: panel.expr.slice(0, 80), stepMS: state.stepMS }))}>Copy as Grafana panel</button>
      <hr />
      <button type="button" disabled={!data} onClick={() => void save("text/csv", "csv", toCSV)}>Download CSV</button>
      <button type="button" disabled={!data} onClick={() => void save("application/json", "json", JSON.stringify)}>Download JSON</button>
      <button type="button" disabled={panel.tab !== "graph" || !data} onClick={(e) => savePicture(e.currentTarget, name, setMessage)}>Download PNG</button>
      {exports && <>
        <hr />
        <button type="button" title="Raw samples that the query's selectors match in this range" onClick={() => raw("csv")}>Raw samples as CSV</button>
        <button type="button" title="Raw samples that the query's selectors match in this range" onClick={() => raw("parquet")}>Raw samples as Parquet</button>
      </>}
      <p class="hint" role="status">{message}</p>
    </div>
  );
}

const fileName = (expr: string): string => expr.replace(/[^\w.-]+/g, "_").slice(0, 60).replace(/^_+|_+$/g, "") || "query";

/** The graph's canvas over the page's background. */
function savePicture(from: HTMLElement, name: string, say: (text: string) => void): void {
  const canvas = from.closest(".panel")?.querySelector<HTMLCanvasElement>(".plot canvas, .heatmap canvas");
  if (!canvas) { say("There is no graph."); return; }
  const out = document.createElement("canvas");
  Object.assign(out, { width: canvas.width, height: canvas.height });
  const ctx = out.getContext("2d")!;
  ctx.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--surface");
  ctx.fillRect(0, 0, out.width, out.height);
  ctx.drawImage(canvas, 0, 0);
  out.toBlob((blob) => { if (blob) saveBlob(blob, `${name}.png`); });
}

/** The selectors of a query without their ranges and offsets, each once. */
function selectors(n: Node): string[] {
  if (n.type === "vectorSelector" || n.type === "matrixSelector") {
    return [textOf({ ...n, type: "vectorSelector", offset: 0, timestamp: null, startOrEnd: null, anchored: false, smoothed: false })];
  }
  return [...new Set(childrenOf(n).flatMap(selectors))];
}
