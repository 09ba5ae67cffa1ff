import assert from "node:assert/strict";
import { test } from "node:test";
import { chooseExamples, firstExample, firstRange, suggestExpr } from "../src/lib/examples.ts";
import { addHistory, readHistory } from "../src/lib/history.ts";
import { commonLabels, countingKey, labelNames, seriesText, without } from "../src/lib/labels.ts";
import { metricRows, searchMetrics } from "../src/lib/metrics.ts";
import { findMark, plainMessage } from "../src/lib/promerror.ts";
import { countHealth, filterTargets, groupTargets } from "../src/lib/targets.ts";

test("series are written as selectors that find them", () => {
  assert.equal(seriesText({ __name__: "up", job: "a" }), 'up{job="a"}');
  assert.equal(seriesText({ __name__: "up" }), "up");
  assert.equal(seriesText({}), "{}");
  assert.equal(seriesText({ a: 'x"y\\z\n' }), '{a="x\\"y\\\\z\\n"}');
  assert.equal(seriesText({ __name__: "http.requests", "k8s.pod": "p" }), '{"http.requests", "k8s.pod"="p"}');
});

test("what all series share is taken out once", () => {
  const common = commonLabels([{ job: "a", i: "1" }, { job: "a", i: "2", x: "3" }]);
  assert.deepEqual(common, { job: "a" });
  assert.deepEqual(without({ job: "a", i: "2", x: "3" }, common), { i: "2", x: "3" });
  assert.deepEqual(commonLabels([{ job: "a" }]), {});
  assert.deepEqual(["shard 10", "Shard 9", "shard 1"].sort((a, b) => (countingKey(a) < countingKey(b) ? -1 : 1)), ["shard 1", "Shard 9", "shard 10"]);
  assert.deepEqual(labelNames([{ __name__: "x", b: "" }, { a: "" }]), ["a", "b"]);
});

test("positions in messages become marks", () => {
  assert.deepEqual(findMark('invalid parameter "query": 1:4: parse error: unexpected identifier "foo"', "up foo"), { from: 3, to: 6 });
  assert.deepEqual(findMark('PromQL info: metric might not be a counter: "up" (1:6)', "rate(up[1m])"), { from: 5, to: 7 });
  assert.deepEqual(findMark("2:1: parse error: x", "sum(\nfoo bar)"), { from: 5, to: 8 });
  assert.deepEqual(findMark("1:5: parse error: unclosed left parenthesis", "sum("), { from: 3, to: 4 });
  assert.equal(findMark("query timed out", "up"), null);
  assert.equal(findMark("9:1: parse error: x", "up"), null);
});

test("columns count bytes, marks count characters", () => {
  const expr = '{a="é"} oops';
  const mark = findMark("1:10: parse error: x", expr)!;
  assert.equal(expr.slice(mark.from, mark.to), "oops");
  assert.equal(plainMessage('invalid parameter "query": 1:4: x'), "1:4: x");
});

test("examples are only of metrics that exist", () => {
  assert.deepEqual(chooseExamples([]), []);
  const list = chooseExamples(["up", "process_cpu_seconds_total", "ferula_http_requests_total"]);
  assert.deepEqual(list.map((e) => e.expr), ["rate(process_cpu_seconds_total[1m])", "sum by (handler, code) (rate(ferula_http_requests_total[1m]))", "up"]);
});

test("data younger than two scrapes begins with what one scrape can show", () => {
  const list = chooseExamples(["process_cpu_seconds_total", "go_goroutines"]);
  assert.equal(firstExample(list, 5000)?.expr, "go_goroutines");
  assert.equal(firstExample(list, 60_000)?.expr, "rate(process_cpu_seconds_total[1m])");
  assert.equal(firstExample(list.slice(0, 1), 5000)?.expr, "rate(process_cpu_seconds_total[1m])");
  assert.equal(firstExample([], 5000), undefined);
});

test("the first range is the smallest that the data fills", () => {
  assert.equal(firstRange(10_000), 60_000);
  assert.equal(firstRange(61_000), 120_000);
  assert.equal(firstRange(301_000), 600_000);
  assert.equal(firstRange(86_400_000), 3_600_000);
});

test("metrics are suggested by their type", () => {
  assert.equal(suggestExpr("a_total", "counter"), "rate(a_total[1m])");
  assert.equal(suggestExpr("a_bucket", "histogram"), "histogram_quantile(0.9, sum by (le) (rate(a_bucket[1m])))");
  assert.equal(suggestExpr("a_bytes", "gauge"), "a_bytes");
});

test("history is newest first, without repeats, and survives broken storage", () => {
  const kept = new Map<string, string>();
  const store = { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => { kept.set(k, v); } };
  for (const e of ["a", "b", " a ", ""]) addHistory(store, e);
  assert.deepEqual(readHistory(store), ["a", "b"]);
  for (let i = 0; i < 300; i++) addHistory(store, `q${i}`);
  assert.equal(readHistory(store).length, 100);
  kept.set("ferula.history", "{broken");
  assert.deepEqual(readHistory(store), []);
  const refusing = { getItem: () => { throw new Error("no"); }, setItem: () => { throw new Error("no"); } };
  assert.deepEqual(addHistory(refusing, "a"), ["a"]);
});

test("metrics are found by name first, then by description", () => {
  const rows = metricRows(["a_up", "up", "x_bucket"], { up: [{ type: "gauge", help: "Whether it is there." }], x: [{ type: "histogram", help: "About up." }] });
  assert.equal(metricRows(["c_total"], { c: [{ type: "counter", help: "" }] })[0]!.type, "counter");
  assert.deepEqual(rows[2], { name: "x_bucket", type: "histogram", help: "About up." });
  assert.deepEqual(searchMetrics(rows, "up").map((r) => r.name), ["up", "a_up", "x_bucket"]);
  assert.deepEqual(searchMetrics(rows, "about up").map((r) => r.name), ["x_bucket"]);
  assert.equal(searchMetrics(rows, "").length, 3);
});

const target = (pool: string, health: string, labels: Record<string, string>) =>
  ({ scrapePool: pool, scrapeUrl: `http://${labels["instance"]}/metrics`, lastError: health === "down" ? "refused" : "", health, labels });

test("targets are filtered by words and health and grouped by pool", () => {
  const all = [target("b", "up", { instance: "h1:1" }), target("a", "down", { instance: "h2:1", env: "dev" }), target("a", "unknown", { instance: "h3:1" })];
  assert.deepEqual(countHealth(all), { up: 1, down: 1, unknown: 1 });
  assert.deepEqual(filterTargets(all, 'env="dev"', "any").map((t) => t.scrapeUrl), ["http://h2:1/metrics"]);
  assert.equal(filterTargets(all, "refused", "up").length, 0);
  const pools = groupTargets(all, { activeTargets: all, droppedTargetCounts: { a: 2, gone: 5, none: 0 } });
  assert.deepEqual(pools.map((p) => [p.name, p.targets.length, p.dropped]), [["a", 2, 2], ["b", 1, 0], ["gone", 0, 5]]);
});
