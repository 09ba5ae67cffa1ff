// Small components that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { APIError, UnavailableError } from "../api/client.ts";
import { adviceFor, NO_RESPONSE, type Advice } from "../lib/advice.ts";
import { plainMessage } from "../lib/promerror.ts";
import type { Route } from "../lib/route.ts";
import { useNav } from "../nav.ts";
import * as icons from "./icons.tsx";

interface TabsProps<T extends string> { label: string; value: T; options: readonly (readonly [T, string])[]; onChange: (v: T) => void }

/** One of a few, as adjoining buttons. Arrow keys move, as in every such row. */
export function Segments<T extends string>({ label, value, options, onChange }: TabsProps<T>) {
  const move = (e: KeyboardEvent) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    e.preventDefault();
    const i = options.findIndex(([v]) => v === value);
    const next = (i + step + options.length) % options.length;
    onChange(options[next]![0]);
    (e.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("button")[next]?.focus();
  };
  return (
    <div class="segments" role="radiogroup" aria-label={label} onKeyDown={move}>
      {options.map(([v, text]) => (
        <button type="button" role="radio" key={v} aria-checked={v === value} tabIndex={v === value ? 0 : -1}
          data-value={v} onClick={() => onChange(v)}>{text}</button>
      ))}
    </div>
  );
}

export function Notice({ kind, children }: { kind: "error" | "warning" | "info"; children: ComponentChildren }) {
  return <div class={`notice ${kind}`} role={kind === "error" ? "alert" : "status"}>{children}</div>;
}

/** A failure in words, with a button that sends the request again. The banner already speaks for a server that is away. */
export function Failure({ error, onRetry }: { error: Error; onRetry?: (() => void) | undefined }) {
  const { title, help } = adviceOf(error);
  return (
    <Notice kind="error">
      <strong>{title}</strong><span>{plainMessage(error.message)}</span>{help !== "" && <span class="help">{help}</span>}
      {onRetry && !isWrongQuery(error) && <button type="button" class="button retry" onClick={onRetry}>Retry</button>}
    </Notice>
  );
}

function adviceOf(error: Error): Advice {
  if (error instanceof UnavailableError) return NO_RESPONSE;
  return error instanceof APIError ? adviceFor(error.type, error.status) : { title: "Unexpected failure", help: "" };
}

/** The same query would fail the same way. */
const isWrongQuery = (error: Error): boolean => error instanceof APIError && ["bad_data", "invalid_argument", "execution"].includes(error.type);

/** More warnings than this push the result off the screen: one a store adds up. */
const WARNINGS_OPEN_MAX = 3;

export function Warnings({ list }: { list: readonly string[] }) {
  const rest = list.slice(WARNINGS_OPEN_MAX);
  return (
    <>
      {list.slice(0, WARNINGS_OPEN_MAX).map((w) => <Notice kind="warning" key={w}>{w}</Notice>)}
      {rest.length > 0 && (
        <details class="notice warning more-warnings"><summary>{rest.length} more {rest.length === 1 ? "warning" : "warnings"}</summary>
          <ul>{rest.map((w) => <li key={w}>{w}</li>)}</ul>
        </details>
      )}
    </>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><p class="empty-title">{title}</p>{children && <p>{children}</p>}</div>;
}

/** A line at the upper edge while something is awaited; it appears late, because a flash on every fast response only annoys. */
export const Progress = ({ on }: { on: boolean }) => <div class={`progress ${on ? "on" : ""}`} role="progressbar" aria-hidden={!on} aria-label="Loading" />;

/** Copies, also where the page is not loaded over https and browsers offer no clipboard. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "copy-box";
    // A modal dialog makes everything outside of it inert, and a menu closes if something outside of it gets the focus.
    const focused = document.activeElement;
    (focused?.closest(".popover") ?? document.querySelector("dialog[open]") ?? document.body).append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return done;
  }
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = () => {
    void copyText(text).then((ok) => {
      setDone(ok);
      timer.current = window.setTimeout(() => setDone(false), 1500);
    });
  };
  return (
    <button type="button" class="button quiet icon-only copy" aria-label={done ? "Copied" : label} title={label} onClick={copy}>
      {done ? <icons.Check /> : <icons.Copy />}
    </button>
  );
}

/** The pages of one family, as links next to the title. */
export function SubNav({ label, routes, current }: { label: string; routes: readonly (readonly [Route, string])[]; current: Route }) {
  const nav = useNav();
  return (
    <nav class="subnav" aria-label={label}>
      {routes.map(([r, text]) => (
        <a key={r} href={nav.href(r)} aria-current={r === current ? "page" : undefined}
          onClick={(e) => { if (e.ctrlKey || e.metaKey || e.shiftKey) return; e.preventDefault(); nav.go(r); }}>{text}</a>
      ))}
    </nav>
  );
}

/** A text box that filters a list. `onDone` gets the text when the box loses focus or Enter is pressed. */
export function Filter({ value, onInput, onDone, label }: { value: string; onInput: (v: string) => void; onDone?: (v: string) => void; label: string }) {
  return (
    <div class="filter">
      <icons.Search />
      <input type="search" value={value} placeholder={label} aria-label={label} spellcheck={false}
        onInput={(e) => onInput(e.currentTarget.value)} onChange={(e) => onDone?.(e.currentTarget.value)} />
    </div>
  );
}

/** Labels as small boxes, name lighter than value; the metric name speaks for itself. */
export function LabelList({ labels }: { labels: Readonly<Record<string, string>> }) {
  return (
    <ul class="labels">
      {Object.entries(labels).sort(([a], [b]) => (a < b ? -1 : 1)).map(([k, v]) => (
        <li key={k}>{k !== "__name__" && <span class="label-name">{k}</span>}<span class="label-value">{v}</span></li>
      ))}
    </ul>
  );
}
