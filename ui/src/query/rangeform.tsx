// The form behind the button of the time range: usual ranges, and any other range by its length or its ends.
import "../style/rangeform.css";
import { useState } from "preact/hooks";
import { formatDuration, parseDuration, spellDuration } from "../lib/duration.ts";
import { formatTime, parseTime, type Zone } from "../lib/time.ts";
import { Segments } from "../parts/small.tsx";
import { usePrefs } from "../prefs.ts";
import { RANGE_MAX_MS, type TimeChange, type TimeState } from "./timebar.tsx";

const MINUTE = 60_000;
const PICKS = [5, 15, 30, 60, 180, 360, 720, 1440, 2 * 1440, 7 * 1440, 14 * 1440, 30 * 1440, 90 * 1440, 365 * 1440].map((m) => m * MINUTE);

interface FormProps { state: TimeState; now: number; zone: Zone; onChange: (c: TimeChange) => void }

export function RangeForm({ state, now, zone, onChange }: FormProps) {
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
