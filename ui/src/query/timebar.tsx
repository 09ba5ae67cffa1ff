// The controls above the panels: which time, how fine, how often again.
import { useState } from "preact/hooks";
import { formatDuration, parseDuration, spellDuration } from "../lib/duration.ts";
import { formatSpan, formatTime, parseTime, type Zone } from "../lib/time.ts";
import type { QueryState } from "../lib/urlstate.ts";
import * as icons from "../parts/icons.tsx";
import { Popover } from "../parts/popover.tsx";
import { Segments } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";

const MINUTE = 60_000;
const PICKS = [5, 15, 30, 60, 180, 360, 720, 1440, 2 * 1440, 7 * 1440, 14 * 1440, 30 * 1440, 90 * 1440, 365 * 1440].map((m) => m * MINUTE);
const REFRESHES = [0, 5000, 15_000, MINUTE];
const RANGE_MAX_MS = 10 * 365 * 86_400_000;

export type TimeChange = Partial<Pick<QueryState, "rangeMS" | "endMS" | "stepMS" | "refreshMS">>;

/** What of a page's state the bar shows. */
export type TimeState = Pick<QueryState, "rangeMS" | "endMS" | "stepMS" | "refreshMS">;

interface Props { state: TimeState; now: number; onChange: (c: TimeChange) => void; onRefresh: () => void }

/** Half a range back or forth. Past the present it becomes "now" again. */
export function shiftTime(s: TimeState, direction: -1 | 1, now: number): TimeChange {
  const end = (s.endMS ?? now) + direction * (s.rangeMS / 2);
  return { endMS: end >= now ? null : end };
}

/** Twice the range around the same middle. */
export function zoomOut(s: TimeState, now: number): TimeChange {
  const end = (s.endMS ?? now) + s.rangeMS / 2;
  return { rangeMS: Math.min(s.rangeMS * 2, RANGE_MAX_MS), endMS: end >= now ? null : end };
}

export function TimeBar({ state, now, onChange, onRefresh }: Props) {
  return (
    <div class="timebar" role="group" aria-label="Time">
      <div class="joined">
        <button type="button" class="button icon-only" aria-label="Earlier" title="Half a range earlier" onClick={() => onChange(shiftTime(state, -1, now))}><icons.Left /></button>
        <RangeButton state={state} now={now} onChange={onChange} />
        <button type="button" class="button icon-only" aria-label="Later" title="Half a range later" disabled={state.endMS === null} onClick={() => onChange(shiftTime(state, 1, now))}><icons.Right /></button>
        <button type="button" class="button icon-only" aria-label="Zoom out" title="Twice the range" onClick={() => onChange(zoomOut(state, now))}><icons.ZoomOut /></button>
      </div>
      <StepField value={state.stepMS} onChange={(stepMS) => onChange({ stepMS })} />
      <div class="joined">
        <button type="button" class="button icon-only" id="refresh" aria-label="Refresh now" title="Refresh now" onClick={onRefresh}><icons.Refresh /></button>
        <RefreshSelect value={state.refreshMS} onChange={(refreshMS) => onChange({ refreshMS })} />
      </div>
    </div>
  );
}

function RangeButton({ state, now, onChange }: { state: TimeState; now: number; onChange: (c: TimeChange) => void }) {
  const { zone } = usePrefs();
  const text = state.endMS === null
    ? `Last ${spellDuration(state.rangeMS)}`
    : formatSpan(state.endMS - state.rangeMS, state.endMS, zone, now);
  return (
    <Popover label="Time range" button={<><span class="range-text">{text}</span><icons.Down /></>} buttonClass="button range-button" align="right">
      {(close) => <RangeForm state={state} now={now} zone={zone} onChange={(c) => { onChange(c); close(); }} />}
    </Popover>
  );
}

interface FormProps { state: TimeState; now: number; zone: Zone; onChange: (c: TimeChange) => void }

function RangeForm({ state, now, zone, onChange }: FormProps) {
  const { setZone } = usePrefs();
  return (
    <div class="range-form">
      <div class="picks" role="group" aria-label="Relative ranges">
        {PICKS.map((ms) => (
          <button type="button" key={ms} data-range={formatDuration(ms)} aria-pressed={state.endMS === null && state.rangeMS === ms}
            onClick={() => onChange({ rangeMS: ms, endMS: null })}>Last {spellDuration(ms)}</button>
        ))}
      </div>
      <div class="range-side">
        <RangeEnd state={state} zone={zone} onChange={onChange} />
        <hr />
        <FromTo key={zone} state={state} now={now} zone={zone} onChange={onChange} />
        <hr />
        <div class="field"><span>Times are</span>
          <Segments<Zone> label="Time zone" value={zone} options={[["local", "Local"], ["utc", "UTC"]]} onChange={setZone} /></div>
      </div>
    </div>
  );
}

/** A range and where it ends, as Prometheus has it. */
function RangeEnd({ state, zone, onChange }: Omit<FormProps, "now">) {
  const [range, setRange] = useState(formatDuration(state.rangeMS));
  const [end, setEnd] = useState(state.endMS === null ? "now" : formatTime(state.endMS, zone));
  const rangeMS = parseDuration(range);
  const rangeOK = rangeMS !== null && rangeMS > 0 && rangeMS <= RANGE_MAX_MS;
  const endMS = parseTime(end, zone, Date.now());
  const apply = (e: Event) => {
    e.preventDefault();
    if (rangeOK && endMS !== null) onChange({ rangeMS, endMS: end.trim() === "now" ? null : endMS });
  };
  return (
    <form onSubmit={apply}>
      <div class="field-row">
        <Field label="Range" value={range} onInput={setRange} bad={!rangeOK} hint="1h30m" />
        <Field label="End" value={end} onInput={setEnd} bad={endMS === null} hint="now" />
      </div>
      <button type="submit" class="button" disabled={!rangeOK || endMS === null}>Apply</button>
    </form>
  );
}

function FromTo({ state, now, zone, onChange }: FormProps) {
  const end = state.endMS ?? now;
  const [from, setFrom] = useState(formatTime(Math.floor((end - state.rangeMS) / 1000) * 1000, zone));
  const [to, setTo] = useState(formatTime(Math.floor(end / 1000) * 1000, zone));
  const [a, b] = [parseTime(from, zone, Date.now()), parseTime(to, zone, Date.now())];
  const ok = a !== null && b !== null && a < b;
  const apply = (e: Event) => {
    e.preventDefault();
    if (ok) onChange({ rangeMS: b - a, endMS: to.trim() === "now" ? null : b });
  };
  return (
    <form onSubmit={apply}>
      <Field label="From" value={from} onInput={setFrom} bad={a === null} hint="2026-01-31 14:00" />
      <Field label="To" value={to} onInput={setTo} bad={b === null || (a !== null && a >= b)} hint="2026-01-31 15:00" />
      <button type="submit" class="button" disabled={!ok}>Apply</button>
    </form>
  );
}

function Field({ label, value, onInput, bad, hint }: { label: string; value: string; onInput: (v: string) => void; bad: boolean; hint: string }) {
  return (
    <label class="field"><span>{label}</span>
      <input type="text" value={value} placeholder={hint} aria-invalid={bad} spellcheck={false} onInput={(e) => onInput(e.currentTarget.value)} />
    </label>
  );
}

/** The resolution: empty is automatic. Applied on Enter or when the box is left. */
function StepField({ value, onChange }: { value: number | null; onChange: (ms: number | null) => void }) {
  const shown = value === null ? "" : formatDuration(value);
  const [bad, setBad] = useState(false);
  const apply = (text: string) => {
    const ms = text.trim() === "" || text.trim() === "auto" ? null : parseDuration(text);
    const wrong = ms === null ? text.trim() !== "" && text.trim() !== "auto" : ms <= 0;
    setBad(wrong);
    if (!wrong && ms !== value) onChange(ms);
  };
  return (
    <label class="step" title="Distance between two points of the graph, e.g. 15s. Empty: chosen by the width.">
      <span>Step</span>
      <input type="text" key={shown} defaultValue={shown} placeholder="auto" aria-label="Step" aria-invalid={bad} spellcheck={false}
        onChange={(e) => apply(e.currentTarget.value)}
        onKeyDown={(e) => { if (e.key === "Enter") apply(e.currentTarget.value); }} />
    </label>
  );
}

function RefreshSelect({ value, onChange }: { value: number; onChange: (ms: number) => void }) {
  const options = REFRESHES.includes(value) ? REFRESHES : [...REFRESHES, value];
  return (
    <select class="button" aria-label="Refresh by itself" title="Refresh by itself" value={String(value)} onChange={(e) => onChange(Number(e.currentTarget.value))}>
      {options.map((ms) => <option key={ms} value={String(ms)}>{ms === 0 ? "Off" : formatDuration(ms)}</option>)}
    </select>
  );
}
