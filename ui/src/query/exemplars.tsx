// Exemplars of a graph: the dots, a list of them, and what each leads to: its profile, its span, its trace.
import "../style/exemplars.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAPI, useFeatures } from "../api/hooks.ts";
import { EXEMPLARS_MAX, exemplarDots, isTraceTemplate, PROFILE_LABEL, spanOf, traceLink, traceOf, type ExemplarSeries } from "../lib/exemplars.ts";
import { formatLong, plural } from "../lib/format.ts";
import type { Labels } from "../lib/labels.ts";
import type { Columns } from "../lib/matrix.ts";
import type { Dot } from "../lib/profiles.ts";
import { formatProfileState, parseProfileState } from "../lib/profilestate.ts";
import type { Grid } from "../lib/step.ts";
import { formatTime } from "../lib/time.ts";
import { useNav } from "../nav.ts";
import { Popover } from "../parts/popover.tsx";
import { LabelList } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { store } from "../store.ts";

/** What the graph needs: the dots, the last line of a dot's tooltip, and the action of a click. */
export interface Marks { dots: readonly Dot[]; hint: (d: Dot) => string; open: (d: Dot) => void }

const LISTED_MAX = 50;
const TEMPLATE_KEY = "ferula.trace-link";
const NO_DOTS: Dot[] = [];

interface Props { expr: string; grid: Grid; columns: Columns; stacked: boolean; onMarks: (m: Marks | null) => void }

/** A link of an exemplar. Without href it opens a page of this server. */
interface Way { text: string; hint: string; href?: string; open: () => void }

export function Exemplars({ expr, grid, columns, stacked, onMarks }: Props) {
  const { result, error } = useAPI<ExemplarSeries[]>("query_exemplars", { query: expr, start: grid.start / 1000, end: grid.end / 1000 });
  const dots = useMemo(() => (result ? exemplarDots(result.data, columns.labels) : NO_DOTS), [result, columns]);
  const [template, setTemplate] = useState(() => store.getItem(TEMPLATE_KEY) ?? "");
  const [picked, setPicked] = useState<Dot | null>(null);
  const [open, setOpen] = useState(false);
  const ways = useWays(template);
  const latest = useRef(ways);
  latest.current = ways;
  useEffect(() => {
    const hint = (d: Dot) => {
      const all = latest.current(d.labels, d.timeMS);
      return all.length === 1 ? all[0]!.hint : all.length > 1 ? `Click for its ${all.map((w) => w.text.toLowerCase()).join(", ")}` : "";
    };
    onMarks({
      dots, hint,
      open: (d) => {
        const all = latest.current(d.labels, d.timeMS);
        if (all.length === 1) all[0]!.open();
        else { setPicked(d); setOpen(true); }
      },
    });
  }, [dots]);
  useEffect(() => () => onMarks(null), []);
  useEffect(() => setPicked(null), [dots]);
  if (error) return <p class="note">No exemplars: {error.message}</p>;
  if (stacked) return <p class="note">Turn off Stacked to see exemplars.</p>;
  if (!result) return null;
  if (dots.length === 0) return <p class="note">The series of this query have no exemplars in this range.</p>;
  const traces = dots.some((d) => traceOf(d.labels) !== "");
  return (
    <div class="exemplars">
      <div class="note">
        {plural(dots.length, "exemplar")}{dots.length === EXEMPLARS_MAX && ", the newest of more"}.
        <button type="button" class="link" aria-expanded={open} onClick={() => { setOpen(!open); setPicked(null); }}>{open ? "Hide the list" : "List them"}</button>
        {traces && (
          <Popover label="Links to traces" buttonClass="link" button={template === "" ? "Link traces" : "Trace link"}>
            {(close) => <TemplateForm value={template} onSave={(t) => { store.setItem(TEMPLATE_KEY, t); setTemplate(t); close(); }} />}
          </Popover>
        )}
      </div>
      {open && <List dots={picked ? [picked] : dots} ways={ways} onAll={picked ? () => setPicked(null) : null} />}
    </div>
  );
}

/** The links of an exemplar with these labels. */
function useWays(template: string): (labels: Labels, timeMS: number) => Way[] {
  const nav = useNav();
  const profiles = useFeatures()?.["profiles"] !== false;
  return (labels, timeMS) => {
    const ways: Way[] = [];
    const id = labels[PROFILE_LABEL] ?? "";
    const span = spanOf(labels);
    const profile = (of: string) => nav.go("profiles", formatProfileState({ ...parseProfileState(nav.place.search), profile: { id, timeMS: Math.round(timeMS) }, span: of }));
    if (profiles && id !== "") ways.push({ text: "Profile", hint: "Click for the profile of that time", open: () => profile("") });
    if (profiles && id !== "" && span !== "") ways.push({ text: "Span", hint: "Click for the samples of its span", open: () => profile(span) });
    const href = traceLink(template, labels);
    if (href !== null) ways.push({ text: "Trace", hint: "Click for its trace", href, open: () => { window.open(href, "_blank", "noopener,noreferrer"); } });
    return ways;
  };
}

function List({ dots, ways, onAll }: { dots: readonly Dot[]; ways: (labels: Labels, timeMS: number) => Way[]; onAll: (() => void) | null }) {
  const { zone } = usePrefs();
  const newest = dots.slice(-LISTED_MAX).reverse();
  return (
    <div class="table-scroll exemplar-list" tabIndex={0} role="region" aria-label="Exemplars">
      <table class="data">
        <thead><tr><th scope="col">Time</th><th scope="col" class="num">Value</th><th scope="col">Labels</th><th scope="col">Leads to</th></tr></thead>
        <tbody>
          {newest.map((d, i) => {
            const to = ways(d.labels, d.timeMS);
            return (
              <tr key={`${i}${d.timeMS}`}>
                <td>{formatTime(d.timeMS, zone)}</td><td class="num">{formatLong(d.value)}</td><td><LabelList labels={d.labels} /></td>
                <td>{to.length === 0 ? <span class="none">–</span> : to.map((w) => (w.href !== undefined
                  ? <a key={w.text} class="link" href={w.href} target="_blank" rel="noreferrer noopener">{w.text}</a>
                  : <button key={w.text} type="button" class="link" onClick={w.open}>{w.text}</button>))}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {onAll ? <p class="hint"><button type="button" class="link" onClick={onAll}>All exemplars</button></p>
        : dots.length > newest.length && <p class="hint">The newest {newest.length} of {dots.length}; a click on a dot shows its own.</p>}
    </div>
  );
}

function TemplateForm({ value, onSave }: { value: string; onSave: (v: string) => void }) {
  const [text, setText] = useState(value);
  const wrong = text.trim() !== "" && !isTraceTemplate(text.trim());
  return (
    <form class="trace-form" onSubmit={(e) => { e.preventDefault(); if (!wrong) onSave(text.trim()); }}>
      <label class="field"><span>Trace URL</span>
        <input type="text" value={text} placeholder="https://traces.example/trace/{trace_id}" aria-invalid={wrong} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} /></label>
      <p class="hint">A label of the exemplar in braces becomes its value. The URL is kept in this browser; leave it empty for no links.</p>
      <button type="submit" class="button" disabled={wrong}>Save</button>
    </form>
  );
}
