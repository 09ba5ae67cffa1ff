// CodeMirror for PromQL: completion from the server, linting, history, and a mark at the position of an error.
import {
  acceptCompletion, autocompletion, closeBrackets, closeBracketsKeymap, closeCompletion, completionKeymap, completionStatus,
  selectedCompletion,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, insertNewlineAndIndent } from "@codemirror/commands";
import { bracketMatching, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintKeymap } from "@codemirror/lint";
import { EditorState, Prec, StateEffect, StateField, type Extension } from "@codemirror/state";
import { Decoration, drawSelection, EditorView, keymap, placeholder, type Command, type DecorationSet } from "@codemirror/view";
import { tagHighlighter, tags } from "@lezer/highlight";
import { PromQLExtension } from "@prometheus-io/codemirror-promql";
import type { Mark } from "../lib/promerror.ts";
import css from "../style/editor.css?inline";

export interface EditorHooks {
  run: () => void;
  /** An older (+1) or newer (-1) query, or null at the end of the list. The draft is what is in the editor now. */
  recall: (step: 1 | -1, draft: string) => string | null;
  changed: (text: string) => void;
}

/** PromQL's tokens by what they are to a reader; editor.css gives them colours. */
const highlighter = tagHighlighter([
  { tag: tags.function(tags.variableName), class: "tok-function" },
  { tag: [tags.operatorKeyword, tags.modifier, tags.logicOperator], class: "tok-keyword" },
  { tag: tags.variableName, class: "tok-metric" },
  { tag: tags.labelName, class: "tok-label" },
  { tag: tags.string, class: "tok-string" },
  { tag: tags.number, class: "tok-number" },
  { tag: tags.comment, class: "tok-comment" },
  { tag: [tags.operator, tags.arithmeticOperator], class: "tok-operator" },
]);

const setMark = StateEffect.define<Mark | null>();

/** The underline goes with the first edit: what is under it is no longer what the server complained about. */
const markField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, tr) {
    let next = tr.docChanged ? Decoration.none : marks;
    for (const e of tr.effects) if (e.is(setMark)) next = e.value ? underline(e.value, tr.newDoc.length) : Decoration.none;
    return next;
  },
  provide: (f) => EditorView.decorations.from(f),
});

function underline(m: Mark, length: number): DecorationSet {
  const to = Math.min(m.to, length);
  return m.from >= to ? Decoration.none : Decoration.set([Decoration.mark({ class: "cm-server-error" }).range(m.from, to)]);
}

export function markError(view: EditorView, mark: Mark | null): void {
  view.dispatch({ effects: setMark.of(mark) });
}

/** Replaces the text as one edit that can be undone. */
export function replaceText(view: EditorView, text: string): void {
  if (view.state.doc.toString() === text) return;
  view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, selection: { anchor: text.length } });
}

const CACHE_MS = 60_000;
const METADATA_MAX = 20_000;

const promQLs = new Map<string, PromQLExtension>();

/** Completion uses the same server, under the same prefix. One per page: all panels share what it has cached. */
export function promQL(base: string): Extension {
  let one = promQLs.get(base);
  if (!one) {
    one = new PromQLExtension().setComplete({
      remote: { url: base.replace(/\/$/, ""), cache: { maxAge: CACHE_MS }, httpErrorHandler: () => undefined },
      maxMetricsMetadata: METADATA_MAX,
    });
    promQLs.set(base, one);
  }
  return one.asExtension();
}

/** Up and Down recall past queries where they would otherwise do nothing: on the first and on the last line. */
function recallCommand(hooks: EditorHooks, step: 1 | -1): Command {
  return (view) => {
    if (completionStatus(view.state) === "active") return false;
    const { state } = view;
    const line = state.doc.lineAt(state.selection.main.head).number;
    if (!state.selection.main.empty || line !== (step === 1 ? 1 : state.doc.lines)) return false;
    const text = hooks.recall(step, state.doc.toString());
    if (text === null) return false;
    replaceText(view, text);
    return true;
  };
}

/** Enter takes the chosen completion; where that is already what stands there (a typed "up"), it runs the query at once. */
function enterCommand(run: Command): Command {
  return (view) => {
    const chosen = selectedCompletion(view.state);
    const head = view.state.selection.main.head;
    if (chosen && view.state.sliceDoc(Math.max(0, head - chosen.label.length), head) !== chosen.label) {
      // acceptCompletion does nothing in the first milliseconds of a list. An incomplete name is not run in that case, either.
      acceptCompletion(view);
      return true;
    }
    return run(view);
  };
}

/**
 * Text typed over a selection. Left to the browser, it copies the colour of what was there into a style attribute, which the
 * Content-Security-Policy blocks and the console reports. Single brackets and quotes go the usual way: they enclose the selection.
 */
const replaceSelected = EditorView.domEventHandlers({
  beforeinput(e, view) {
    const { data } = e;
    if (e.inputType !== "insertText" || data === null || view.composing || view.state.selection.main.empty || /^[([{"'`]$/.test(data)) return false;
    e.preventDefault();
    view.dispatch(view.state.replaceSelection(data), { userEvent: "input.type", scrollIntoView: true });
    return true;
  },
});

export function extensions(promql: Extension, hooks: EditorHooks, label: string): Extension[] {
  // A completion that arrives after the query was run would cover the graph.
  const run: Command = (view) => { closeCompletion(view); hooks.run(); return true; };
  return [
    Prec.highest(keymap.of([
      { key: "Tab", run: acceptCompletion },
      { key: "Mod-Enter", run },
      { key: "Enter", run: enterCommand(run) },
      { key: "Shift-Enter", run: insertNewlineAndIndent },
      { key: "ArrowUp", run: recallCommand(hooks, 1) },
      { key: "ArrowDown", run: recallCommand(hooks, -1) },
    ])),
    history(), drawSelection(), bracketMatching(), closeBrackets(), indentUnit.of("  "),
    autocompletion({ icons: false, maxRenderedOptions: 80 }),
    EditorView.lineWrapping,
    syntaxHighlighting(highlighter),
    keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
    placeholder("PromQL expression"),
    EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", autocapitalize: "off" }),
    EditorView.updateListener.of((u) => { if (u.docChanged) hooks.changed(u.state.doc.toString()); }),
    markField, replaceSelected, promql,
  ];
}

let sheet: CSSStyleSheet | null = null;

/**
 * The editor lives in a shadow tree: there CodeMirror adds its styles through adoptedStyleSheets, which needs no
 * unsafe-inline in the Content-Security-Policy, as the style element that it adds to a document would.
 */
export function newEditor(parent: HTMLElement, doc: string, all: Extension[]): EditorView {
  const root = parent.shadowRoot ?? parent.attachShadow({ mode: "open", delegatesFocus: false });
  if (!sheet) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
  }
  const host = document.createElement("div");
  host.className = "editor-box";
  root.replaceChildren(host);
  const view = new EditorView({ parent: host, root, state: EditorState.create({ doc, selection: { anchor: doc.length }, extensions: all }) });
  root.adoptedStyleSheets = [...root.adoptedStyleSheets.filter((s) => s !== sheet), sheet];
  return view;
}
