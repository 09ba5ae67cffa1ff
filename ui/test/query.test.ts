// What is done with a query before and after it is sent: variables, ranges, units, its tree, its cost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { adviceFor } from "../src/lib/advice.ts";
import { cardinality, matchSides, textOf, type Matching, type Node } from "../src/lib/ast.ts";
import { goDurationMS, parseServerTiming } from "../src/lib/cost.ts";
import { parseDuration } from "../src/lib/duration.ts";
import { rateWindow } from "../src/lib/examples.ts";
import { shellWord, toCSV, toCurl, toRead } from "../src/lib/export.ts";
import { metricNames, unitFormat, unitOfExpr } from "../src/lib/metricunits.ts";
import { withoutRange } from "../src/lib/rangeless.ts";
import { expandVariables, hasVariables, rateIntervalMS, scrapeIntervalOf } from "../src/lib/variables.ts";

const AROUND = { rangeMS: 3_600_000, stepMS: 15_000, endMS: 1_700_000_000_000, scrapeMS: 30_000 };

test("Grafana's variables become durations", () => {
  assert.equal(expandVariables("rate(a[$__rate_interval]) + b[${__range}] * $__interval_ms / $__range_s", AROUND), "rate(a[2m]) + b[1h] * 15000 / 3600");
  assert.equal(expandVariables("$__unknown $__intervals", AROUND), "$__unknown $__intervals");
  assert.equal(hasVariables("rate(a[$__rate_interval])"), true);
  assert.equal(hasVariables("rate(a[5m])"), false);
  assert.equal(rateIntervalMS(600_000, 15_000), 615_000);
});

test("the scrape interval is the longest of a configuration", () => {
  assert.equal(scrapeIntervalOf("global:\n  scrape_interval: 15s\nscrape_configs:\n- job_name: a\n  scrape_interval: 1m\n", parseDuration), 60_000);
  assert.equal(scrapeIntervalOf("# scrape_interval: 5s", parseDuration), null);
  assert.equal(rateWindow(60_000), "4m");
  assert.equal(rateWindow(5000), "1m");
  assert.equal(rateWindow(null), "5m");
});

test("a graph of raw samples leaves out the range", () => {
  assert.equal(withoutRange("up[5m]"), "up");
  assert.equal(withoutRange('up{a="[x]"}[5m] offset 1h'), 'up{a="[x]"} offset 1h');
  assert.equal(withoutRange("rate(up[5m])"), null);
  assert.equal(withoutRange('up{a="[5m]"}'), null);
  assert.equal(withoutRange("rate(a[1m])[5m:1m]"), "rate(a[1m])");
});

test("units come from names and metadata, and doubt has none", () => {
  const cases: [string, string][] = [
    ["process_resident_memory_bytes", "bytes"], ["rate(node_network_receive_bytes_total[5m])", "bytes/s"], ["sum by (job) (rate(http_requests_total[5m]))", "/s"],
    ['histogram_quantile(0.9, sum by (le) (rate(x_seconds_bucket{a="b_bytes"}[5m])))', "seconds"], ["rate(x_seconds_bucket[5m])", ""], ["rate(process_cpu_seconds_total[1m])", "seconds/s"],
    ["a_bytes / b_bytes", ""], ["a_bytes + b_bytes", "bytes"], ["count(a_bytes)", ""], ["a_seconds + b_bytes", ""], ["up", ""], ["max_over_time(x_ratio[5m])", "ratio"], ["x_seconds_count", ""],
    ["a_bytes * 8", ""], ["1", ""], ["a_bytes > 5", "bytes"],
  ];
  for (const [expr, unit] of cases) assert.equal(unitOfExpr(expr), unit, expr);
  assert.equal(unitOfExpr("latency", { latency: "seconds" }), "seconds");
  assert.deepEqual(metricNames('sum by (a, b) (rate(x{c="y"}[5m])) / on (d) group_left (e) z'), ["x", "z"]);
  assert.equal(unitFormat("seconds")!.short(0.25), "250 ms");
  assert.equal(unitFormat(""), null);
});

const selector = (name: string, more: object = {}): Node => ({ type: "vectorSelector", name, matchers: [], offset: 0, timestamp: null, startOrEnd: null, ...more }) as Node;

test("a tree becomes the text that it came from", () => {
  const m: Matching = { card: "many-to-one", labels: ["job"], on: true, include: ["x"] };
  const tree: Node = { type: "binaryExpr", op: "/", bool: false, matching: m,
    lhs: { type: "aggregation", op: "sum", grouping: ["job"], without: false, param: null, expr: { type: "call", func: { name: "rate" }, args: [{ ...selector("a"), type: "matrixSelector", range: 300_000, offset: 60_000 } as Node] } },
    rhs: { type: "parenExpr", expr: selector("", { matchers: [{ name: "b.c", type: "=~", value: 'x"y' }] }) } };
  assert.equal(textOf(tree), 'sum by (job) (rate(a[5m] offset 1m)) / on (job) group_left (x) ({"b.c"=~"x\\"y"})');
});

test("two sides of an operator meet by the labels that count", () => {
  const m: Matching = { card: "one-to-one", labels: ["a"], on: true, include: [] };
  const r = matchSides(m, [{ a: "1", x: "p" }, { a: "1", x: "q" }, { a: "2" }], [{ a: "1" }, { a: "3" }]);
  assert.deepEqual({ ...r, leftOnly: r.leftOnly.length, rightOnly: r.rightOnly.length }, { groups: 1, leftOnly: 1, rightOnly: 1, crowded: 1 });
  assert.equal(matchSides({ ...m, on: false, labels: ["x"] }, [{ __name__: "l", a: "1", x: "p" }], [{ __name__: "r", a: "1" }]).groups, 1);
  assert.deepEqual(cardinality([{ a: "1", b: "x" }, { a: "2", b: "x" }]), [{ name: "a", values: 2 }, { name: "b", values: 1 }]);
});

test("Server-Timing is read, commas in quotes too", () => {
  assert.deepEqual(parseServerTiming('queue;dur=1.5, fetch;desc="3 parts, 1 hit";dur=20, cache'), [{ name: "queue", ms: 1.5, text: "" }, { name: "fetch", ms: 20, text: "3 parts, 1 hit" }]);
  assert.deepEqual(parseServerTiming(""), []);
});

test("exports are safe to paste", () => {
  assert.equal(shellWord("it's"), "'it'\\''s'");
  assert.equal(toCurl("http://h/api/v1/query", { query: "a b", time: 1, none: undefined, "m[]": ["x", "y"] }, { "X-Scope-OrgID": "t" }),
    "curl -fsS -G \\\n  -H 'X-Scope-OrgID: t' \\\n  --data-urlencode 'query=a b' \\\n  --data-urlencode time=1 \\\n  --data-urlencode 'm[]=x' \\\n  --data-urlencode 'm[]=y' \\\n  http://h/api/v1/query");
  assert.equal(toRead("http://h/", 'up{a="b"}', 0, 1000), "ferula read \\\n  --url http://h/ \\\n  --match 'up{a=\"b\"}' \\\n  --start 1970-01-01T00:00:00.000Z \\\n  --end 1970-01-01T00:00:01.000Z \\\n  -o out.parquet");
  assert.equal(toCSV({ resultType: "vector", result: [{ metric: { __name__: "=cmd()", a: 'x"y' }, value: [1, "-5"] }] }), 'series,time,value\r\n"{""=cmd()"", a=""x\\""y""}",1970-01-01T00:00:01.000Z,-5\r\n');
});

test("every status has a sentence that states what to do", () => {
  for (const status of [401, 403, 404, 413, 429, 500, 502, 503, 504]) assert.ok(adviceFor("error", status).help.length > 20, String(status));
  assert.equal(adviceFor("timeout", 503).title, "The query took too long");
});

test("durations of Go are milliseconds, and other texts are not", () => {
  assert.deepEqual(["1.5s", "350µs", "1m2.5s", "12.25ms", "1h0m0s", "80ns"].map((d) => Number(goDurationMS(d).toPrecision(9))), [1500, 0.35, 62_500, 12.25, 3_600_000, 8e-5]);
  for (const bad of ["", "x", "1", "1.5s!", "s"]) assert.ok(Number.isNaN(goDurationMS(bad)), bad);
});
