// The PromQL editor as a component. Until CodeMirror has loaded a plain text box stands in its place, so that a first graph
// does not wait for it. The text under edit lives in the editor; it becomes the page's state when it is run.
import type { Ref } from "preact";
import { useEffect, useImperativeHandle, useRef, useState } from "preact/hooks";
import { useServer } from "../api/hooks.ts";
import { readHistory } from "../lib/history.ts";
import type { Mark } from "../lib/promerror.ts";
import { store } from "../store.ts";

/** What was in the text box when the editor came. */
interface Carried { text: string; focused: boolean }

export interface EditorHandle { focused: () => boolean; text: () => string; set: (text: string) => void; insert: (text: string) => void; focus: () => void }

interface Props {
  expr: string;
  label: string;
  mark: Mark | null;
  onRun: (expr: string) => void;
  onChange: (dirty: boolean) => void;
  handle: Ref<EditorHandle>;
  autofocus: boolean;
}

type CM = typeof import("./cm.ts");

let loaded: CM | null = null;

/** Long enough for the first request to be sent before the editor competes for the connection. */
const LOAD_AFTER_MS = 300;

/** `leaving` is called while the text box is still there. */
function useCM(leaving: () => void): CM | null {
  const [cm, setCM] = useState(loaded);
  useEffect(() => {
    if (cm) return undefined;
    let wanted = true;
    // Without CodeMirror the text box lacks completion only, so a failure to load is not shown.
    const timer = setTimeout(() => void import("./cm.ts").then((m) => { loaded = m; if (!wanted) return; leaving(); setCM(() => m); }, () => undefined), LOAD_AFTER_MS);
    return () => { wanted = false; clearTimeout(timer); };
  }, []);
  return cm;
}

export function Editor(props: Props) {
  const inner = useRef<EditorHandle>(null);
  const carried = useRef<Carried | null>(null);
  const cm = useCM(() => { carried.current = { text: inner.current?.text() ?? "", focused: inner.current?.focused() ?? false }; });
  useImperativeHandle(props.handle, () => ({
    focused: () => inner.current?.focused() ?? false,
    text: () => inner.current?.text() ?? props.expr,
    set: (text) => inner.current?.set(text),
    insert: (text) => inner.current?.insert(text),
    focus: () => inner.current?.focus(),
  }), []);
  return cm ? <CodeEditor {...props} cm={cm} handle={inner} carried={carried.current} /> : <PlainEditor {...props} handle={inner} />;
}

function PlainEditor({ expr, label, onRun, onChange, handle, autofocus }: Props) {
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => { if (autofocus) box.current!.focus(); }, []);
  useEffect(() => { box.current!.value = expr; }, [expr]);
  useImperativeHandle(handle, () => ({
    focused: () => document.activeElement === box.current,
    text: () => box.current?.value ?? "",
    set: (text) => { if (box.current) box.current.value = text; },
    insert: (text) => box.current?.setRangeText(text),
    focus: () => box.current?.focus(),
  }), []);
  return (
    <textarea class="editor plain" ref={box} aria-label={label} rows={1} spellcheck={false} autocapitalize="off" placeholder="PromQL expression" defaultValue={expr}
      onInput={(e) => onChange(e.currentTarget.value.trim() !== expr.trim())}
      onKeyDown={(e) => { if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); onRun(e.currentTarget.value); } }} />
  );
}

interface CodeProps extends Props { cm: CM; carried: Carried | null }

function CodeEditor({ expr, label, mark, onRun, onChange, handle, autofocus, cm, carried }: CodeProps) {
  const server = useServer();
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<ReturnType<CM["newEditor"]> | null>(null);
  const recalled = useRef({ at: -1, draft: "" });
  // CodeMirror is made once and must always call the newest closures.
  const latest = useRef({ onRun, onChange, expr });
  latest.current = { onRun, onChange, expr };

  useEffect(() => {
    const hooks = {
      run: () => { recalled.current.at = -1; latest.current.onRun(v.state.doc.toString()); },
      recall: (step: 1 | -1, draft: string) => recall(recalled.current, step, draft),
      changed: (text: string) => latest.current.onChange(text.trim() !== latest.current.expr.trim()),
    };
    const v = cm.newEditor(host.current!, carried?.text ?? expr, cm.extensions(cm.promQL(server.base), hooks, label));
    view.current = v;
    if (carried?.focused ?? autofocus) v.focus();
    return () => v.destroy();
  }, []);

  const first = useRef(true);
  useEffect(() => {
    if (first.current) { first.current = false; return; }
    if (view.current) cm.replaceText(view.current, expr);
  }, [expr]);
  useEffect(() => { if (view.current) cm.markError(view.current, mark); }, [mark?.from, mark?.to]);

  useImperativeHandle(handle, () => ({
    focused: () => view.current?.hasFocus ?? false,
    text: () => view.current?.state.doc.toString() ?? "",
    set: (text) => { if (view.current) cm.replaceText(view.current, text); },
    insert: (text) => { const v = view.current; if (v) v.dispatch(v.state.replaceSelection(text)); },
    focus: () => view.current?.focus(),
  }), []);

  return <div class="editor" ref={host} />;
}

/** Walks the list of past queries as a shell does: the unfinished text is the newest entry and comes back at its end. */
function recall(state: { at: number; draft: string }, step: 1 | -1, draft: string): string | null {
  const list = readHistory(store);
  if (state.at >= 0 && list[state.at] !== draft) state.at = -1; // edited since: it is a draft again
  if (state.at < 0) state.draft = draft;
  let next = state.at + step;
  if (list[next] === draft) next += step; // the newest entry is usually what stands there already
  if (next >= list.length || next < -1) return null;
  state.at = next;
  return next < 0 ? state.draft : list[next]!;
}
