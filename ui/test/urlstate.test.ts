import assert from "node:assert/strict";
import { test } from "node:test";
import { splitPath } from "../src/lib/route.ts";
import { emptyState, formatState, parseState, type QueryState } from "../src/lib/urlstate.ts";

test("the empty state has an empty address", () => {
  assert.equal(formatState(emptyState()), "");
  assert.deepEqual(parseState(""), emptyState());
});

test("states survive the address", () => {
  const states: QueryState[] = [
    { panels: [{ expr: 'rate(a{b="c&d=+ é"}[1m])', tab: "graph", stacked: false, exemplars: false }], rangeMS: 300_000, endMS: null, stepMS: null, refreshMS: 5000 },
    { panels: [{ expr: "a", tab: "table", stacked: false, exemplars: false }, { expr: "", tab: "graph", stacked: false, exemplars: false }, { expr: "b\n+ c", tab: "graph", stacked: true, exemplars: false }],
      rangeMS: 3_600_000, endMS: Date.UTC(2026, 0, 31, 14), stepMS: 15_000, refreshMS: 0 },
    { panels: [{ expr: "x", tab: "graph", stacked: true, exemplars: true }], rangeMS: 86_400_000, endMS: Date.UTC(2026, 0, 31) + 7, stepMS: 500, refreshMS: 0 },
  ];
  for (const s of states) assert.deepEqual(parseState(formatState(s)), s);
});

test("defaults stay out of the address", () => {
  assert.equal(formatState({ ...emptyState(), panels: [{ expr: "up", tab: "graph", stacked: false, exemplars: false }] }), "?expr=up");
});

test("Prometheus' links open here", () => {
  const s = parseState("?g0.expr=up&g0.tab=0&g0.range_input=2h&g0.end_input=2026-01-31%2014%3A00%3A00&g0.step_input=30&g0.stacked=1&g1.expr=go_goroutines&g1.tab=1&g1.range_input=1h");
  assert.deepEqual(s, {
    panels: [{ expr: "up", tab: "graph", stacked: true, exemplars: false }, { expr: "go_goroutines", tab: "table", stacked: false, exemplars: false }],
    rangeMS: 7_200_000, endMS: Date.UTC(2026, 0, 31, 14), stepMS: 30_000, refreshMS: 0,
  });
});

test("newer links of Prometheus open too", () => {
  const s = parseState("?g0.expr=up&g0.show_tree=0&g0.tab=graph&g0.range_input=1h&g0.res_type=fixed&g0.res_step=60&g0.display_mode=stacked");
  assert.equal(s.panels[0]!.stacked, true);
  assert.equal(s.panels[0]!.tab, "graph");
  assert.equal(s.stepMS, 60_000);
});

test("nonsense in an address falls back to defaults", () => {
  const s = parseState("?expr=up&range=x&end=y&step=-1&refresh=z&tab=pie&stacked=2");
  assert.deepEqual(s, { ...emptyState(), panels: [{ expr: "up", tab: "graph", stacked: false, exemplars: false }] });
});

test("paths split into base and route under any prefix", () => {
  assert.deepEqual(splitPath("/"), { base: "/", route: "query" });
  assert.deepEqual(splitPath("/graph"), { base: "/", route: "query" });
  assert.deepEqual(splitPath("/a/prom/targets"), { base: "/a/prom/", route: "targets" });
  assert.deepEqual(splitPath("/nowhere"), { base: "/", route: null });
  assert.equal(splitPath("/constructor").route, null);
});
