// The profiles page's state in the address:
//
//   ?type=process_cpu:cpu:nanoseconds:cpu:nanoseconds&service=ferula&match=pod="a"&by=pod&range=1h&end=…&id=…&at=…
//
// id and at name one profile, an exemplar that was clicked; without them the flame graph is that of the whole range.
import { formatDuration } from "./duration.ts";
import { DEFAULT_RANGE_MS, parseState } from "./urlstate.ts";

export interface ProfileState {
  /** "" is chosen by the page. */
  type: string;
  service: string;
  matchers: string;
  groupBy: string;
  rangeMS: number;
  endMS: number | null;
  stepMS: number | null;
  refreshMS: number;
  profile: { id: string; timeMS: number } | null;
}

export function parseProfileState(search: string): ProfileState {
  const q = new URLSearchParams(search);
  const { rangeMS, endMS, stepMS, refreshMS } = parseState(search);
  const id = q.get("id") ?? "";
  const timeMS = Number(q.get("at") ?? NaN);
  return {
    type: q.get("type") ?? "",
    service: q.get("service") ?? "",
    matchers: q.get("match") ?? "",
    groupBy: q.get("by") ?? "",
    rangeMS, endMS, stepMS, refreshMS,
    profile: id !== "" && Number.isFinite(timeMS) ? { id, timeMS } : null,
  };
}

/** The address for a state, "" for the empty one. */
export function formatProfileState(s: ProfileState): string {
  const q = new URLSearchParams();
  const put = (name: string, value: string) => { if (value !== "") q.set(name, value); };
  put("type", s.type);
  put("service", s.service);
  put("match", s.matchers);
  put("by", s.groupBy);
  if (s.rangeMS !== DEFAULT_RANGE_MS) q.set("range", formatDuration(s.rangeMS));
  if (s.endMS !== null) q.set("end", new Date(s.endMS).toISOString().replace(".000Z", "Z"));
  if (s.stepMS !== null) q.set("step", formatDuration(s.stepMS));
  if (s.refreshMS > 0) q.set("refresh", formatDuration(s.refreshMS));
  if (s.profile) {
    q.set("id", s.profile.id);
    q.set("at", String(s.profile.timeMS));
  }
  const text = q.toString();
  return text === "" ? "" : `?${text}`;
}
