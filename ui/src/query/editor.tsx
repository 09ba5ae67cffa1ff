// The PromQL editor as a component. The text under edit lives in CodeMirror; it becomes the page's state when it is run.
import type { EditorView } from "@codemirror/view";
import type { Ref } from "preact";
import { useEffect, useImperativeHandle, useRef } from "preact/hooks";
import type { PromQLExtension } from "@prometheus-io/codemirror-promql";
import { readHistory } from "../lib/history.ts";
import { store } from "../store.ts";
import type { Mark } from "../lib/promerror.ts";
import { extensions, markError, newEditor, replaceText } from "./cm.ts";

export interface EditorHandle { text: () => string; set: (text: string) => void; insert: (text: string) => void; focus: () => void }

interface Props {
  expr: string;
  label: string;
  promql: PromQLExtension;
  mark: Mark | null;
  onRun: (expr: string) => void;
  onChange: (dirty: boolean) => void;
  handle: Ref<EditorHandle>;
  autofocus: boolean;
}

export function Editor({ expr, label, promql, mark, onRun, onChange, handle, autofocus }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
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
    const v = newEditor(host.current!, expr, extensions(promql.asExtension(), hooks, label));
    view.current = v;
    if (autofocus) v.focus();
    return () => v.destroy();
  }, []);

  useEffect(() => { if (view.current) replaceText(view.current, expr); }, [expr]);
  useEffect(() => { if (view.current) markError(view.current, mark); }, [mark?.from, mark?.to]);

  useImperativeHandle(handle, () => ({
    text: () => view.current?.state.doc.toString() ?? "",
    set: (text) => { if (view.current) replaceText(view.current, text); },
    insert: (text) => {
      const v = view.current;
      if (v) v.dispatch(v.state.replaceSelection(text));
    },
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
