// The controls above the panels: time range, resolution, interval of refresh.
import { useState } from "preact/hooks";
import { formatDuration, parseDuration, spellDuration } from "../lib/duration.ts";
import { formatSpan } from "../lib/time.ts";
import type { QueryState } from "../lib/urlstate.ts";
import * as icons from "../parts/icons.tsx";
import { lazy } from "../parts/lazy.tsx";
import { Popover } from "../parts/popover.tsx";
import { usePrefs } from "../prefs.ts";

const MINUTE = 60_000;
const REFRESHES = [0, 5000, 15_000, MINUTE];
export const RANGE_MAX_MS = 10 * 365 * 86_400_000;

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
        <button type="button" class="button icon-only" aria-label="Earlier" title="Back by half a range" onClick={() => onChange(shiftTime(state, -1, now))}><icons.Left /></button>
        <RangeButton state={state} now={now} onChange={onChange} />
        <button type="button" class="button icon-only" aria-label="Later" title="Forward by half a range" disabled={state.endMS === null} onClick={() => onChange(shiftTime(state, 1, now))}><icons.Right /></button>
        <button type="button" class="button icon-only" aria-label="Zoom out" title="Zoom out" onClick={() => onChange(zoomOut(state, now))}><icons.ZoomOut /></button>
      </div>
      <StepField value={state.stepMS} onChange={(stepMS) => onChange({ stepMS })} />
      <div class="joined">
        <button type="button" class="button icon-only" id="refresh" aria-label="Refresh now" title="Refresh now" onClick={onRefresh}><icons.Refresh /></button>
        <RefreshSelect value={state.refreshMS} onChange={(refreshMS) => onChange({ refreshMS })} />
      </div>
    </div>
  );
}

const RangeForm = lazy(() => import("./rangeform.tsx").then((m) => m.RangeForm), <p class="hint">…</p>);

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
    <label class="step" title="Time between two points, e.g. 15s. Leave it empty to choose it from the width.">
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
    <select class="button" aria-label="Auto-refresh" title="Auto-refresh" value={String(value)} onChange={(e) => onChange(Number(e.currentTarget.value))}>
      {options.map((ms) => <option key={ms} value={String(ms)}>{ms === 0 ? "Off" : formatDuration(ms)}</option>)}
    </select>
  );
}
