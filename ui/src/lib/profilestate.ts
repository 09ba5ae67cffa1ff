// The profiles page's state in the address:
//
//   ?type=process_cpu:cpu:nanoseconds:cpu:nanoseconds&service=ferula&match=pod="a"&by=pod&range=1h&end=…&id=…&at=…
//
// id and at name one profile, an exemplar that was clicked, span one span of it; without them the flame graph is that of the
// whole range. dots shows a profile of each step on its line. base is a second range, "from-to" in ms, that the shown one is compared with. over is what is above the flame
// graph, and cell the cell of its heat map whose profiles are listed. The rest is of the flame graph.
import { formatDuration } from "./duration.ts";
import { formatCell, parseCell, type Cell } from "./profileheat.ts";
import { DEFAULT_RANGE_MS, formatView, parseState, parseView, plainView, type PanelView } from "./urlstate.ts";

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
  /** Of that profile only the samples of this span; "" is all of them. */
  span: string;
  /** What is shown over time; "" is chosen by the page: services where there are several, else lines. */
  over: Over;
  /** Whether lines have a dot for a profile of each step; null is chosen by the page: for one service. */
  dots: boolean | null;
  /** Of the heat map, whose profiles or spans are listed. */
  cell: Cell | null;
  /** What is searched for among services. */
  services: string;
  /** The range to compare with, in ms. */
  base: { start: number; end: number } | null;
  /** Flame graph, table, or both next to each other. */
  view: "flame" | "table" | "both";
  /** What is searched for in function names. */
  find: string;
  /** The function whose callers and callees are shown; "" shows the whole. */
  sandwich: string;
  /** Roots at the bottom, as a flame; else icicles. */
  upward: boolean;
  /** Functions that call themselves drawn once. */
  collapse: boolean;
  /** The way to the function that fills the width (focusMark); "" is the whole. */
  focus: string;
  /** The most boxes of a flame graph; 0 is the page's default. */
  nodes: number;
  /** Ends of long names instead of their beginnings. */
  ends: boolean;
  /** Boxes coloured by what they take themselves, instead of by package. */
  bySelf: boolean;
  /** How the lines over time are drawn. */
  lines: LinesView;
  /** The order of the table of functions; "" is by their own cost. */
  order: "" | "name" | "total";
  tenant: string;
}

export type LinesView = Pick<PanelView, "hidden" | "only" | "sort" | "find" | "all">;

const linesOf = ({ hidden, only, sort, find, all }: LinesView): LinesView => ({ hidden, only, sort, find, all });

export type Over = "" | "services" | "lines" | "heat" | "spans";

/** What belongs to another type or service and would be wrong with this one. */
export const elsewhere: Readonly<Pick<ProfileState, "profile" | "span" | "cell" | "focus">> = { profile: null, span: "", cell: null, focus: "" };

/** Steps in which a flame graph has more boxes. */
export const NODES = [8192, 32_768, 131_072] as const;

const OVERS: readonly Over[] = ["services", "lines", "heat", "spans"];
const FOCUS = /^[0-9a-z]{1,4}(\.[0-9a-z]{1,4})*$/;
const RANGE = /^(\d{1,15})-(\d{1,15})$/;

export function parseProfileState(search: string): ProfileState {
  const q = new URLSearchParams(search);
  const { rangeMS, endMS, stepMS, refreshMS } = parseState(search);
  const id = q.get("id") ?? "";
  const timeMS = Number(q.get("at") ?? NaN);
  const profile = id !== "" && Number.isFinite(timeMS) ? { id, timeMS } : null;
  const over = OVERS.find((o) => o === q.get("over")) ?? "";
  return {
    type: q.get("type") ?? "",
    service: q.get("service") ?? "",
    matchers: q.get("match") ?? "",
    groupBy: q.get("by") ?? "",
    rangeMS, endMS, stepMS, refreshMS,
    profile, over,
    span: profile ? q.get("span") ?? "" : "",
    dots: q.has("dots") ? q.get("dots") !== "0" : null,
    cell: over === "heat" || over === "spans" ? parseCell(q.get("cell")) : null,
    services: q.get("services") ?? "",
    base: rangeOf(q.get("base")),
    view: q.get("view") === "table" ? "table" : q.get("view") === "both" ? "both" : "flame",
    find: q.get("find") ?? "",
    sandwich: q.get("function") ?? "",
    upward: q.get("up") === "1",
    collapse: q.get("collapse") === "1",
    focus: FOCUS.test(q.get("focus") ?? "") ? q.get("focus")! : "",
    nodes: NODES.slice(1).find((n) => String(n) === q.get("nodes")) ?? 0,
    ends: q.get("ends") === "1",
    bySelf: q.get("color") === "self",
    lines: linesOf(parseView(q.get("lines") ?? "")),
    order: (["name", "total"] as const).find((o) => o === q.get("order")) ?? "",
    tenant: q.get("tenant") ?? "",
  };
}

function rangeOf(text: string | null): { start: number; end: number } | null {
  const m = RANGE.exec(text ?? "");
  const [start, end] = [Number(m?.[1] ?? NaN), Number(m?.[2] ?? NaN)];
  return start < end ? { start, end } : null;
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
    put("span", s.span);
  }
  put("over", s.over);
  if (s.dots !== null) q.set("dots", s.dots ? "1" : "0");
  if (s.cell && (s.over === "heat" || s.over === "spans")) q.set("cell", formatCell(s.cell));
  put("services", s.services);
  if (s.base) q.set("base", `${s.base.start}-${s.base.end}`);
  if (s.view !== "flame") q.set("view", s.view);
  put("find", s.find);
  put("function", s.sandwich);
  if (s.upward) q.set("up", "1");
  if (s.collapse) q.set("collapse", "1");
  put("focus", s.focus);
  if (s.nodes > 0) q.set("nodes", String(s.nodes));
  if (s.ends) q.set("ends", "1");
  if (s.bySelf) q.set("color", "self");
  put("lines", formatView({ ...plainView(), ...s.lines }));
  put("order", s.order);
  put("tenant", s.tenant);
  const text = q.toString();
  return text === "" ? "" : `?${text}`;
}
