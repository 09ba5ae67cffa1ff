import assert from "node:assert/strict";
import { test } from "node:test";
import { splitPath } from "../src/lib/route.ts";
import { anyStore, emptyPanel, emptyState, formatState, parseState, parseView, formatView, seriesMark, type PanelState, type QueryState } from "../src/lib/urlstate.ts";

test("the empty state has an empty address", () => {
  assert.equal(formatState(emptyState()), "");
  assert.deepEqual(parseState(""), emptyState());
});

test("states survive the address", () => {
  const states: QueryState[] = [
    { panels: [{ ...emptyPanel(), expr: 'rate(a{b="c&d=+ é"}[1m])', tab: "graph", stacked: false, exemplars: false }], rangeMS: 300_000, endMS: null, stepMS: null, refreshMS: 5000, stores: anyStore(), tenant: "" },
    { panels: [{ ...emptyPanel(), expr: "a", tab: "table", stacked: false, exemplars: false }, { ...emptyPanel(), expr: "", tab: "graph", stacked: false, exemplars: false }, { ...emptyPanel(), expr: "b\n+ c", tab: "graph", stacked: true, exemplars: false }],
      rangeMS: 3_600_000, endMS: Date.UTC(2026, 0, 31, 14), stepMS: 15_000, refreshMS: 0, stores: anyStore(), tenant: "" },
    { panels: [{ ...emptyPanel(), expr: "x", tab: "graph", stacked: true, exemplars: true }], rangeMS: 86_400_000, endMS: Date.UTC(2026, 0, 31) + 7, stepMS: 500, refreshMS: 0, stores: anyStore(), tenant: "" },
  ];
  for (const s of states) assert.deepEqual(parseState(formatState(s)), s);
});

test("defaults stay out of the address", () => {
  assert.equal(formatState({ ...emptyState(), panels: [{ ...emptyPanel(), expr: "up", tab: "graph", stacked: false, exemplars: false }] }), "?expr=up");
});

test("Prometheus' links open here", () => {
  const s = parseState("?g0.expr=up&g0.tab=0&g0.range_input=2h&g0.end_input=2026-01-31%2014%3A00%3A00&g0.step_input=30&g0.stacked=1&g1.expr=go_goroutines&g1.tab=1&g1.range_input=1h");
  assert.deepEqual(s, {
    panels: [{ ...emptyPanel(), expr: "up", tab: "graph", stacked: true, exemplars: false }, { ...emptyPanel(), expr: "go_goroutines", tab: "table", stacked: false, exemplars: false }],
    rangeMS: 7_200_000, endMS: Date.UTC(2026, 0, 31, 14), stepMS: 30_000, refreshMS: 0, stores: anyStore(), tenant: "",
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
  assert.deepEqual(s, { ...emptyState(), panels: [{ ...emptyPanel(), expr: "up", tab: "graph", stacked: false, exemplars: false }] });
});

test("paths split into base and route under any prefix", () => {
  assert.deepEqual(splitPath("/"), { base: "/", route: "query" });
  assert.deepEqual(splitPath("/graph"), { base: "/", route: "query" });
  assert.deepEqual(splitPath("/a/prom/targets"), { base: "/a/prom/", route: "targets" });
  assert.deepEqual(splitPath("/nowhere"), { base: "/", route: null });
  assert.equal(splitPath("/constructor").route, null);
});

test("Thanos' links open with what they hold", () => {
  const q = new URLSearchParams({
    "g0.expr": "up", "g0.tab": "0", "g0.deduplicate": "0", "g0.partial_response": "1", "g0.max_source_resolution": "5m", "g0.y_axis_min": "0",
    "g0.store_matches": JSON.stringify([{ name: "10.0.0.1:10901" }]),
  });
  const s = parseState(`?${q}`);
  assert.deepEqual(s.stores, { dedup: "0", partial: "1", resolution: "5m", match: ['{__address__="10.0.0.1:10901"}'] });
  assert.equal(s.panels[0]!.scale, "zero");
  assert.deepEqual(parseState("?g0.expr=up&g0.store_matches=%7Bbroken").stores.match, []);
  assert.equal(parseState("?g0.expr=up&g0.show_tree=1&g0.tab=1").panels[0]!.tab, "explain");
});

/** A generator with a seed: a failure names the state that failed. */
function random(seed: number): (n: number) => number {
  let x = seed;
  return (n) => { x = (Math.imul(x, 1664525) + 1013904223) >>> 0; return Math.floor((x / 2 ** 32) * n); };
}

const TEXTS = ["", "up", 'a{b="c,d:e%&=+#"}', "é\n漢 \u{1f525}", "<script>", "view=zero", "sort:x,-", "%", "%zz", "a+"];

test("any state of the query page survives the address", () => {
  const next = random(7);
  const one = <T>(...list: T[]): T => list[next(list.length)]!;
  for (let i = 0; i < 2000; i++) {
    const panel = (): PanelState => ({
      expr: one(...TEXTS), tab: one("graph", "table", "explain"), stacked: one(true, false), exemplars: one(true, false), scale: one("auto", "zero", "log"), heat: one(true, false),
      compareMS: one(0, 86_400_000, 1500), hidden: Array.from({ length: next(4) }, () => seriesMark(one(...TEXTS) + next(100))), only: Array.from({ length: next(4) }, () => seriesMark(one(...TEXTS) + next(100))), sort: one("", "last-", "name+"),
      tableSort: one("", "(value)-", "a,b:c+", "é-", "x+y-"), layout: one("", "columns", "text", "bars"), stats: one(true, false), all: one(true, false), find: one(...TEXTS), linear: one(true, false),
    });
    const s: QueryState = {
      panels: Array.from({ length: 1 + next(4) }, panel), rangeMS: one(1, 3_600_000, 86_400_000 * 30), endMS: one(null, 1_700_000_000_000, 1_700_000_000_123), stepMS: one(null, 1, 60_000),
      refreshMS: one(0, 5000), stores: { dedup: one("", "0", "1"), partial: one("", "0", "1"), resolution: one("", "5m", "auto"), match: Array.from({ length: next(3) }, () => one(...TEXTS)) },
      tenant: one("", "team a", "x/y"),
    };
    // One empty panel is no panel: it is what an address without any opens.
    if (s.panels.length === 1 && s.panels[0]!.expr === "") s.panels = [emptyPanel()];
    assert.deepEqual(parseState(formatState(s)), s);
  }
});

test("views read back what they wrote, and leave out what they do not know", () => {
  assert.deepEqual(parseView(formatView(parseView("log,heat,cmp:1d,hide:ab.cd,only:e.f,sort:max+,by:a%2Cb-,as:text,stats,all,find:a%2Cb,linear"))), parseView("log,heat,cmp:1d,hide:ab.cd,only:e.f,sort:max+,by:a%2Cb-,as:text,stats,all,find:a%2Cb,linear"));
  assert.deepEqual(parseView("pie,cmp:x,sort:,hide:<b>,by:%zz"), parseView(""));
});
