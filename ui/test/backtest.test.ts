import assert from "node:assert/strict";
import { test } from "node:test";
import { drawnExpr, ruleFile, shareOf, spansOf, thresholdOf, type TestedAlert } from "../src/lib/backtest.ts";

test("a threshold is the number that an expression ends with", () => {
  const cases: readonly (readonly [string, string, number])[] = [
    ["up == 0", "up", 0], ["a/b>0.5", "a/b", 0.5], ["x >= bool -1e3\n", "x", -1000], ["a > 1 and b < .25", "a > 1 and b", 0.25], ["rate(a[5m]) != 3.", "rate(a[5m])", 3],
  ];
  for (const [expr, left, value] of cases) {
    const t = thresholdOf(expr)!;
    assert.deepEqual([t.left, t.value], [left, value], expr);
    assert.equal(thresholdOf(t.before + "7")!.value, 7);
  }
  for (const expr of ["up", "a > b", "a > 5 unless b", "5", "absent(up)", "a > 10m"]) assert.equal(thresholdOf(expr), null, expr);
  assert.equal(drawnExpr("up == 0"), '(up) or label_replace(vector(0), "threshold", "0", "", "")');
  assert.equal(drawnExpr("absent(up)"), "absent(up)");
});

test("a pasted rule becomes a rule file, an expression does not", () => {
  assert.equal(ruleFile("up == 0"), null);
  assert.equal(ruleFile("groups:\n- name: a\n"), "groups:\n- name: a\n");
  const file = "groups:\n- name: pasted\n  rules:\n  - alert: A\n    expr: up == 0\n";
  assert.equal(ruleFile("alert: A\nexpr: up == 0"), file);
  assert.equal(ruleFile("- alert: A\n  expr: up == 0"), file);
  assert.equal(ruleFile("# why\n- record: a\n  expr: b"), "groups:\n- name: pasted\n  rules:\n  # why\n  - record: a\n    expr: b\n");
});

test("spans of all alerts are joined, and have a place in the range", () => {
  const alerts: TestedAlert[] = [
    { labels: {}, intervals: [{ state: "firing", start: 10, end: 20, value: "1" }, { state: "pending", start: 5, end: 9, value: "1" }] },
    { labels: { a: "b" }, intervals: [{ state: "firing", start: 21, end: 30, value: "1" }, { state: "firing", start: 50, end: 60, value: "1" }] },
  ];
  assert.deepEqual(spansOf(alerts, "firing", 1000), [[10_000, 30_000], [50_000, 60_000]]);
  assert.deepEqual(spansOf(alerts, "pending", 1000), [[5000, 9000]]);
  assert.deepEqual(shareOf(25, 50, 0, 100), { left: "25.000%", width: "25.000%" });
  assert.deepEqual(shareOf(-5, 0, 0, 100), { left: "0.000%", width: "0.200%" });
});
